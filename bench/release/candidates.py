"""Simulates many candidates on several processes, and counts how they ended."""

import statistics
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Any

from bench.release.plan import Plan
from bench.release.simulation import DOMAINS, KINDS, Kind, Run, simulate, upper_share

_SEED = 20_260_000
_STRIDE = 100_000
_BATCH = 50


def run_all(plan: Plan) -> list[Run]:
    """Every kind's candidates, each with a seed of its own."""
    batches = []
    for place, kind in enumerate(KINDS):
        count = plan.better if kind.better else plan.not_better
        seeds = range(_SEED + place * _STRIDE, _SEED + place * _STRIDE + count)
        batches += [(kind.name, seeds[begin : begin + _BATCH]) for begin in range(0, count, _BATCH)]
    with ProcessPoolExecutor(max_workers=plan.processes) as pool:
        return [run for found in pool.map(_batch, batches) for run in found]


def kinds_table(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """How each kind ended."""
    return [_row(kind, [run for run in runs if run.kind == kind.name]) for kind in KINDS]


def wrong_upper(runs: Sequence[Run]) -> float:
    """The 95% upper bound of the share of wrong promotions over all that are not better."""
    wrong = {kind.name for kind in KINDS if not kind.better}
    found = [run for run in runs if run.kind in wrong]
    return upper_share(sum(run.promoted for run in found), len(found))


def right_share(runs: Sequence[Run]) -> float:
    """Share of better candidates that were promoted."""
    found = _better(runs)
    return sum(run.promoted for run in found) / len(found)


def median_prompts(runs: Sequence[Run]) -> float:
    """Paired prompts of a Domain until a better candidate was decided about."""
    return statistics.median(run.prompts for run in _better(runs))


def _better(runs: Sequence[Run]) -> list[Run]:
    names = {kind.name for kind in KINDS if kind.better}
    return [run for run in runs if run.kind in names]


def _batch(job: tuple[str, Sequence[int]]) -> list[Run]:
    name, seeds = job
    kind = next(one for one in KINDS if one.name == name)
    return [simulate(kind, seed) for seed in seeds]


def _row(kind: Kind, runs: Sequence[Run]) -> dict[str, Any]:
    promoted = sum(run.promoted for run in runs)
    prompts = sorted(run.prompts for run in runs)
    reasons = [run.reason for run in runs if run.reason]
    return {
        "kind": kind.name,
        "candidates": len(runs),
        "promoted": promoted,
        "promoted_share": promoted / len(runs),
        "upper95": upper_share(promoted, len(runs)),
        "median_prompts": statistics.median(prompts),
        "p95_prompts": prompts[min(len(prompts) - 1, int(0.95 * len(prompts)))],
        "median_requests": statistics.median(prompts) * len(DOMAINS),
        "usual_reason": statistics.mode(reasons) if reasons else "-",
    }
