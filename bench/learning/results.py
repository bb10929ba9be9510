"""From Evaluations to rows and checks. Runs are kept by Domain and seed, so that one can be made again alone."""

from collections.abc import Mapping, Sequence
from statistics import NormalDist
from typing import Any

from bench.checks import Check, check
from bench.learning.plan import DOMAINS, MARGIN, MIXED, SEEDS
from core.evaluation import Evaluation
from core.run import TrainingRun

_TAIL = 0.025
"""Of a 95% interval."""

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


def learned(found: Mapping[str, Any], *, among: int = 1) -> bool:
    """Whether the 95% interval of end against start lies above zero.

    ``among``: how many such questions are asked together. The lower half of the interval is widened by Bonferroni as
    that of a normal mean, so that one of them says yes by chance as seldom as a single one would.
    """
    normal = NormalDist()
    wider = normal.inv_cdf(1.0 - _TAIL / among) / normal.inv_cdf(1.0 - _TAIL)
    return bool(found["gain"] - wider * (found["gain"] - found["low"]) > 0.0)


def forgotten(run: Mapping[str, Any]) -> float:
    """The largest loss of success in any other Domain; 0: none lost."""
    return float(max([0.0, *(-one["gain"] for one in run["others"])]))


def surely_forgotten(run: Mapping[str, Any]) -> float:
    """The largest loss that is sure in any other Domain: the bound of its interval next to zero."""
    return float(max([0.0, *(-one["high"] for one in run["others"])]))


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
    lost, surely = [forgotten(one) for one in mixed], [surely_forgotten(one) for one in mixed]
    gained_by_chance = sum(learned(one, among=len(controls)) for one in controls)
    return [
        check("domains_gained", len(gained), "Domains", f">= {len(DOMAINS)}"),
        check("controls_run", len(controls), "runs", f">= {len(DOMAINS) * len(SEEDS)}"),
        check("controls_gained", gained_by_chance if controls else None, "runs", "== 0"),
        check("seeds", seeds, "seeds", f">= {len(SEEDS)}"),
        check("forgetting_max", max(lost) if lost else None, "share", f"<= {MARGIN}"),
        check("forgetting_sure", max(surely) if surely else None, "share", f"<= {MARGIN}"),
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
