"""Simulated sequences through ``core.statistics``: coverage under continuous peeking, false alarms, and power."""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.release.plan import Plan
from bench.release.simulation import GAIN, paired_sample, upper_share
from core.statistics.sample_ratio import sample_ratio_path
from core.statistics.sequences import (
    BURN_IN,
    asymptotic_halfwidth,
    bernstein_sequence,
    capital,
    rejected,
    unit_interval,
)

Floats = NDArray[np.float64]

ALPHA = 0.05
PROMOTION_ALPHA = 0.005
_PART = 250
"""Sequences at once: memory stays small."""
_TOLERANCE = 1e-12


def coverage_table(plan: Plan) -> list[dict[str, Any]]:
    """Share of sequences whose bounds hold the mean at every single look, by method and distribution."""
    rows = []
    for place, (name, mean) in enumerate(_MEANS.items()):
        held = dict.fromkeys(("betting", "empirical Bernstein", "asymptotic"), 0)
        for values in _sequences(name, plan.sequences, plan.length, seed=100 + place):
            held["betting"] += _betting_holds(values, mean)
            held["empirical Bernstein"] += _bernstein_holds(values, mean)
            held["asymptotic"] += _asymptotic_holds(values, mean)
        rows += [
            {
                "method": method,
                "observations": name,
                "coverage": count / plan.sequences,
                "sequences": plan.sequences,
                "looks": plan.length - (BURN_IN - 1 if method == "asymptotic" else 0),
            }
            for method, count in held.items()
        ]
    return rows


def halfwidth(plan: Plan) -> float:
    """Of the Monte-Carlo interval of a coverage of 1 - ALPHA: 1.96 standard errors."""
    return 1.96 * math.sqrt(ALPHA * (1.0 - ALPHA) / plan.sequences)


def null_table(plan: Plan) -> list[dict[str, Any]]:
    """How often two equal arms are called different, or a gain is found, while everybody looks all the time."""
    wrong = dict.fromkeys((ALPHA, PROMOTION_ALPHA), 0)
    wrong_asymptotic = 0
    for values in _sequences("paired successes", plan.null_experiments, plan.length, seed=200):
        wealth = capital(values, 0.5)
        for alpha in wrong:
            wrong[alpha] += int(rejected(wealth, alpha=alpha)[:, -1].sum())
        wrong_asymptotic += len(values) - _asymptotic_holds(values, 0.5)
    rows = [_null_row(f"gain by betting, alpha {alpha}", count, plan, alpha) for alpha, count in wrong.items()]
    rows.append(_null_row(f"difference by the asymptotic sequence, alpha {ALPHA}", wrong_asymptotic, plan, ALPHA))
    for shares in ((0.5, 0.5), (0.9, 0.1), (0.99, 0.01)):
        counts = _sample_ratio_alarms(plan, shares, shares, seed=300)
        rows.append(_null_row(f"split {shares[0]:g}:{shares[1]:g} healthy, alpha 0.001", counts, plan, 0.001))
    return rows


def power_table(plan: Plan, fixed: int) -> list[dict[str, Any]]:
    """Share of true gains that are proven by some number of pairs, beside a z-test that looks once."""
    proven: list[NDArray[np.bool_]] = []
    scores: list[Floats] = []
    for values in _sequences("paired successes with a gain", plan.null_experiments, plan.length, seed=400):
        proven.append(rejected(capital(values, 0.5), alpha=PROMOTION_ALPHA))
        once = values[:, : min(fixed, plan.length)]
        scores.append((once.mean(axis=1) - 0.5) / (once.std(axis=1, ddof=1) / math.sqrt(once.shape[1])))
    whole, z = np.concatenate(proven), np.concatenate(scores)
    rows = [
        {"test": "z-test, one look", "pairs": min(fixed, plan.length), "power": float((z >= 2.575829).mean())},
    ]
    looks = sorted({min(count, plan.length) for count in (1_000, 2_000, fixed, 4_000, 5_000)})
    rows += [
        {"test": "betting, every look", "pairs": count, "power": float(whole[:, count - 1].mean())} for count in looks
    ]
    broken = _sample_ratio_alarms(plan, (0.5, 0.5), (0.53, 0.47), seed=500)
    rows.append(
        {"test": "sample ratio, 53:47 for 50:50", "pairs": plan.length, "power": broken / plan.null_experiments}
    )
    return rows


_MEANS = {"paired successes": 0.5, "paired successes with a gain": (1.0 + GAIN) / 2.0, "rare events": 0.02}
"""Observations in [0, 1] and their mean."""


def _sequences(name: str, count: int, length: int, *, seed: int) -> Iterator[Floats]:
    generator = np.random.default_rng(seed)
    for begin in range(0, count, _PART):
        shape = (min(_PART, count - begin), length)
        if name == "rare events":
            yield (generator.random(shape) < _MEANS[name]).astype(np.float64)
        else:
            yield unit_interval(paired_sample(2.0 * _MEANS[name] - 1.0, generator, shape))


def _betting_holds(values: Floats, mean: float) -> int:
    limit = math.log(2.0 / ALPHA)
    low = capital(values, mean).max(axis=1) >= limit
    high = capital(values, mean, above=False).max(axis=1) >= limit
    return int((~(low | high)).sum())


def _bernstein_holds(values: Floats, mean: float) -> int:
    lower, upper = bernstein_sequence(values, alpha=ALPHA)
    return int(((lower[:, -1] <= mean + _TOLERANCE) & (upper[:, -1] >= mean - _TOLERANCE)).sum())


def _asymptotic_holds(values: Floats, mean: float) -> int:
    count = np.arange(1, values.shape[1] + 1, dtype=np.float64)
    means = np.cumsum(values, axis=1) / count
    variance = np.maximum(np.cumsum(values**2, axis=1) / count - means**2, 0.0)
    half = asymptotic_halfwidth(count, variance, alpha=ALPHA)
    outside = np.abs(means - mean) > half
    return int((~outside[:, BURN_IN - 1 :].any(axis=1)).sum())


def _sample_ratio_alarms(plan: Plan, planned: tuple[float, float], true: tuple[float, float], *, seed: int) -> int:
    """Experiments of ``length`` keys whose split ever looked broken, looked at every 50 keys."""
    generator = np.random.default_rng(seed)
    alarms = 0
    for begin in range(0, plan.null_experiments, _PART):
        size = min(_PART, plan.null_experiments - begin)
        second = np.cumsum(generator.random((size, plan.length)) < true[1], axis=1)[:, 49::50].astype(np.float64)
        total = np.arange(50, plan.length + 1, 50, dtype=np.float64)
        evidence = sample_ratio_path(np.stack([total - second, second], axis=-1), planned)
        alarms += int((evidence.max(axis=1) >= math.log(1.0 / 0.001)).sum())
    return alarms


def _null_row(name: str, wrong: int, plan: Plan, alpha: float) -> dict[str, Any]:
    return {
        "test": name,
        "experiments": plan.null_experiments,
        "false": wrong,
        "share": wrong / plan.null_experiments,
        "upper95": upper_share(wrong, plan.null_experiments),
        "alpha": alpha,
    }
