"""From Evaluations to rows and checks. Runs are kept by Domain and seed, so that one can be made again alone."""

from collections.abc import Mapping, Sequence
from typing import Any

from bench.checks import Check, check
from bench.learning.plan import DOMAINS, MARGIN, MIXED, SEEDS
from core.evaluation import Evaluation
from core.run import TrainingRun

Runs = dict[str, dict[str, Any]]
"""``DOMAIN/SEED`` → what that run showed."""


def place(domain: str, seed: int) -> str:
    """The name of a run."""
    return f"{domain}/{seed}"


def compared(evaluation: Evaluation) -> dict[str, Any]:
    """One paired comparison on held-out Tasks."""
    return {
        "domain": evaluation.domain,
        "tasks": evaluation.tasks,
        "before": evaluation.baseline_success,
        "after": evaluation.success,
        "gain": evaluation.gain.mean,
        "low": evaluation.gain.low,
        "high": evaluation.gain.high,
    }


def curve(run: TrainingRun) -> list[dict[str, Any]]:
    """A training run, step by step."""
    return [step.model_dump(mode="json", exclude={"created_at"}) for step in run.steps]


def learned(found: Mapping[str, Any]) -> bool:
    """Whether the interval of end against start lies above zero."""
    return bool(found["low"] > 0.0)


def forgotten(run: Mapping[str, Any]) -> float:
    """The largest loss of success in any other Domain; 0: none lost."""
    return float(max([0.0, *(-one["gain"] for one in run["others"])]))


def reward_gap(run: Mapping[str, Any]) -> float | None:
    """Success that training saw at its last step, minus held-out success: what was only pleased, not learned."""
    seen = [step["success_rate"] for step in run["curve"] if step["success_rate"] is not None]
    return None if not seen else float(seen[-1] - run["trained"]["after"])


def checks(runs: Runs) -> list[Check]:
    """The targets, each with what was measured."""
    gained = [
        domain
        for domain in DOMAINS
        if _all(runs, domain) and all(learned(one["trained"]) for one in _all(runs, domain))
    ]
    controls = [one["control"] for domain in DOMAINS for one in _all(runs, domain) if one.get("control")]
    mixed = _all(runs, MIXED)
    seeds = min((len(_all(runs, domain)) for domain in DOMAINS), default=0)
    lost = [forgotten(one) for one in mixed]
    return [
        check("domains_gained", len(gained), "Domains", f">= {len(DOMAINS)}"),
        check("controls_run", len(controls), "runs", f">= {len(DOMAINS) * len(SEEDS)}"),
        check("controls_gained", sum(learned(one) for one in controls) if controls else None, "runs", "== 0"),
        check("seeds", seeds, "seeds", f">= {len(SEEDS)}"),
        check("forgetting_max", max(lost) if lost else None, "share", f"<= {MARGIN}"),
    ]


def rows(runs: Runs) -> list[dict[str, Any]]:
    """One line per run and Domain."""
    found = []
    for name, run in sorted(runs.items()):
        entries: Sequence[Mapping[str, Any]] = run["others"] if name.startswith(MIXED) else [run["trained"]]
        for one in entries:
            found.append(
                {
                    "run": name,
                    "domain": one["domain"],
                    "base": run.get("base"),
                    "start": one["before"],
                    "end": one["after"],
                    "gain": _interval(one),
                    "control": _interval(run["control"]) if run.get("control") else None,
                    "forgotten": None if name.startswith(MIXED) else forgotten(run),
                    "reward_gap": None if name.startswith(MIXED) else reward_gap(run),
                    "minutes": run["seconds"] / 60,
                }
            )
    return found


def _interval(one: Mapping[str, Any]) -> str:
    return f"{one['gain']:+.3f} [{one['low']:+.3f}, {one['high']:+.3f}]"


def _all(runs: Runs, domain: str) -> list[dict[str, Any]]:
    return [run for name, run in sorted(runs.items()) if name.rpartition("/")[0] == domain]
