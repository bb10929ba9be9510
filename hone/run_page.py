"""A TrainingRun as one self-contained HTML page: pictures, alarms, what versions were trained on, configuration."""

import json
from collections.abc import Callable, Sequence
from html import escape
from typing import Any

from core.run import DomainMetrics, StepMetrics, TrainingRun
from hone.pictures import lines

_STYLE = """
body{font:16px/1.5 system-ui,sans-serif;max-width:72rem;margin:2rem auto;padding:0 1rem;color:#222}
h1{font-size:1.6rem}h2{font-size:1.15rem;margin-top:2rem}table{border-collapse:collapse;width:100%}
td,th{border-bottom:1px solid #ddd;padding:.3rem .5rem;text-align:left;vertical-align:top}td.n{text-align:right}
.pictures{display:grid;grid-template-columns:repeat(auto-fit,minmax(28rem,1fr));gap:1.5rem}
.state{padding:.8rem 1rem;border-radius:.4rem;background:#eef3f9}.state.bad{background:#fbece6}
figure{margin:0}figcaption{font-size:.9rem;color:#555}svg{width:100%;height:auto}
pre{background:#f6f6f6;padding:.8rem;overflow:auto}code{font-size:.85rem}
"""
_VALUE_PICTURES: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("Entropy", "nats a token; a fall to nearly nothing ends exploration", ("entropy",)),
    (
        "KL",
        "nats a token; mismatch: engine against learner, approx: this step's own move",
        ("mismatch_kl", "approx_kl"),
    ),
    ("Effective sample size and clip share", "shares of the tokens", ("ess", "clip_share")),
    ("Staleness", "versions between sampling and training", ("staleness_mean", "staleness_max", "steps_ahead")),
    ("Groups", "a step's groups, and those that taught nothing", ("groups", "zero_variance_groups")),
    ("Seconds", "waiting for Episodes, training, hot-swap", ("generate_seconds", "train_seconds", "swap_seconds")),
)


def run_page(run: TrainingRun, lineage: Sequence[dict[str, Any]] = ()) -> str:
    """The page of ``run``; ``lineage`` as ``GET /admin/v1/runs/{id}/lineage`` gives it."""
    title = f"Run {run.id}: {run.algorithm} on {run.policy}"
    facts = (
        f"{len(run.steps)} of {run.planned_steps} steps, from version {run.start_version}, "
        f"seed {run.seed}, Domains {', '.join(run.domains)}"
    )
    state = "state" if run.error is None else "state bad"
    reason = f": {escape(run.error)}" if run.error else ""
    return (
        f"<!doctype html><html lang=en><meta charset=utf-8><title>{escape(title)}</title><style>{_STYLE}</style>"
        f"<h1>{escape(title)}</h1><p class='{state}'><b>{escape(run.status.value)}</b>{reason}<br>{escape(facts)}</p>"
        f"<div class=pictures>{''.join(pictures(run.steps))}</div>"
        f"{_alarms(run.steps)}{_dropped(run.steps)}{_lineage(lineage)}"
        f"<h2>Configuration</h2><pre>{escape(json.dumps(run.config, indent=2, sort_keys=True))}</pre></html>"
    )


def pictures(steps: Sequence[StepMetrics]) -> list[str]:
    """Every picture that the steps have numbers for, as figures."""
    if not steps:
        return []
    drawn = [
        _by_domain(steps, "Reward by Domain", "mean over the attempts that count", lambda one: one.reward_mean),
        _by_domain(steps, "Success by Domain", "share of the attempts that count", lambda one: one.success_rate),
        _by_domain(steps, "Length by Domain", "mean sampled tokens of an attempt", lambda one: one.response_tokens),
        _figure("Loss", "its value says little in GRPO", [("loss", [step.loss for step in steps])]),
        _figure("Gradient norm", "before clipping", [("gradient norm", [step.gradient_norm for step in steps])]),
    ]
    for title, caption, names in _VALUE_PICTURES:
        series = [(name, [step.values.get(name) for step in steps]) for name in names]
        drawn.append(_figure(title, caption, series))
    return [figure for figure in drawn if figure]


def _by_domain(
    steps: Sequence[StepMetrics], title: str, caption: str, of: Callable[[DomainMetrics], float | None]
) -> str:
    names = sorted({name for step in steps for name in step.domains})
    series = [(name, [of(step.domains[name]) if name in step.domains else None for step in steps]) for name in names]
    return _figure(title, caption, series)


def _figure(title: str, caption: str, series: Sequence[tuple[str, Sequence[float | None]]]) -> str:
    shown = [(name, values) for name, values in series if any(value is not None for value in values)]
    if not shown:
        return ""
    picture = lines(shown, x_label="step", title=title)
    return f"<figure><h2>{escape(title)}</h2>{picture}<figcaption>{escape(caption)}</figcaption></figure>"


def _alarms(steps: Sequence[StepMetrics]) -> str:
    rows = "".join(
        f"<tr><td class=n>{step.step}</td><td>{escape(str(alarm))}</td></tr>"
        for step in steps
        for alarm in step.alarms
    )
    return f"<h2>Alarms</h2><table><tr><th>step<th>alarm</tr>{rows}</table>" if rows else ""


def _dropped(steps: Sequence[StepMetrics]) -> str:
    """Sums over the run of what did not train, by cause."""
    totals: dict[str, float] = {}
    for step in steps:
        for name, value in step.values.items():
            if name.startswith(("refused_", "break_")) or name in {"truncated", "zero_variance_groups"}:
                totals[name] = totals.get(name, 0.0) + value
    rows = "".join(
        f"<tr><td>{escape(name.replace('_', ' '))}</td><td class=n>{value:g}</td></tr>"
        for name, value in sorted(totals.items())
        if value
    )
    return f"<h2>What did not train</h2><table><tr><th>cause<th>number</tr>{rows}</table>" if rows else ""


def _lineage(lineage: Sequence[dict[str, Any]]) -> str:
    rows = "".join(
        f"<tr><td class=n>{int(one['step'])}</td><td class=n>@{int(one['version'])}</td>"
        f"<td><code>{escape(str(one['checkpoint_id']))}</code></td><td class=n>{len(one['episode_ids'])}</td>"
        f"<td><details><summary>Episodes</summary><code>{escape(', '.join(one['episode_ids']))}</code>"
        "</details></td></tr>"
        for one in lineage
    )
    head = "<tr><th>step<th>version<th>Checkpoint<th>Episodes<th></tr>"
    return f"<h2>Data lineage</h2><table>{head}{rows}</table>" if rows else ""
