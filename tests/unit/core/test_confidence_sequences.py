"""Confidence sequences hold at every look, tests are powerful enough to be used, and numbers agree with formulas."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.statistics.covariate import cuped
from core.statistics.intervals import clustered_bootstrap, mcnemar_exact, paired_bootstrap
from core.statistics.multiplicity import benjamini_hochberg, holm
from core.statistics.sample_ratio import sample_ratio_evidence, sample_ratio_path
from core.statistics.sequences import (
    BURN_IN,
    asymptotic_halfwidth,
    bernstein_sequence,
    betting_bounds,
    capital,
    difference_sequence,
    rejected,
    unit_interval,
)

ALPHA = 0.05
RUNS, LOOKS = 1_000, 1_000


def allowed(share: float, runs: int = RUNS) -> float:
    """``share`` and three standard errors of its estimate from ``runs``."""
    return share + 3 * math.sqrt(share * (1 - share) / runs)


def paired_differences(seed: int, gain: float = 0.0, runs: int = RUNS, looks: int = LOOKS) -> np.ndarray:
    """Rows of -1, 0 and 1: two sides answer the same prompts, the second better by ``gain`` on average."""
    shares = [0.25 - gain / 2, 0.5, 0.25 + gain / 2]
    return np.random.default_rng(seed).choice([-1.0, 0.0, 1.0], size=(runs, looks), p=shares)


def test_a_true_null_is_seldom_rejected_however_often_one_looks() -> None:
    """Betting at every one of 1,000 looks rejects an exactly true null in at most alpha of 1,000 runs."""
    wealth = capital(unit_interval(paired_differences(1)), 0.5)
    assert rejected(wealth, alpha=ALPHA)[:, -1].mean() <= allowed(ALPHA)


@pytest.mark.parametrize("mean", [0.02, 0.3, 0.9])
def test_the_bernstein_sequence_covers_at_every_look(mean) -> None:
    """The true mean of skewed data is outside at any of 1,000 looks in at most alpha of 1,000 runs."""
    values = (np.random.default_rng(2).random((RUNS, LOOKS)) < mean).astype(float)
    lower, upper = bernstein_sequence(values, alpha=ALPHA)
    missed = ((lower > mean) | (upper < mean)).any(axis=-1)
    assert missed.mean() <= allowed(ALPHA)


def test_the_asymptotic_sequence_covers_after_the_burn_in() -> None:
    """With looks from the burn-in on, the true mean is outside in at most alpha of 1,000 runs."""
    values = np.random.default_rng(3).exponential(size=(RUNS, LOOKS))
    count = np.arange(1, LOOKS + 1)
    mean = np.cumsum(values, axis=-1) / count
    variance = np.cumsum(values**2, axis=-1) / count - mean**2
    half = asymptotic_halfwidth(count, variance, alpha=ALPHA)
    missed = (np.abs(mean - 1.0) > half)[:, BURN_IN:].any(axis=-1)
    assert missed.mean() <= allowed(ALPHA)


def test_a_fixed_horizon_test_with_peeking_would_not_hold() -> None:
    """What the sequences are for: testing at z = 1.96 at every look rejects a true null far too often."""
    values = paired_differences(4)
    count = np.arange(1, LOOKS + 1)
    z = np.abs(np.cumsum(values, axis=-1)) / np.sqrt(0.5 * count)
    assert (z[:, BURN_IN:] > 1.96).any(axis=-1).mean() > 3 * ALPHA


def test_a_real_gain_is_found() -> None:
    """A gain of 5 points at base rate 0.5 is proven at alpha 0.005 within 5,000 paired prompts in most runs."""
    values = paired_differences(5, gain=0.05, runs=200, looks=5_000)
    found = rejected(capital(unit_interval(values), 0.5), alpha=0.005)
    assert found[:, -1].mean() >= 0.9


def test_a_mean_below_the_null_is_no_easier_to_reject() -> None:
    """The null is composite: with a mean below it the wealth only falls faster."""
    wealth = capital(unit_interval(paired_differences(6, gain=-0.1)), 0.5)
    assert rejected(wealth, alpha=ALPHA)[:, -1].mean() <= allowed(ALPHA) / 2


@settings(max_examples=30, deadline=None)
@given(st.lists(st.floats(0, 1), min_size=1, max_size=200))
def test_both_directions_mirror_each_other(values) -> None:
    """Betting on small means is betting on large ones of the mirrored data, and wealth stays finite."""
    up = capital(values, 0.3, above=False)
    down = capital([1.0 - value for value in values], 0.7)
    assert np.allclose(up, down)
    assert np.isfinite(up).all()


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10_000), st.floats(0.05, 0.95))
def test_betting_bounds_are_what_the_test_rejects(seed, mean) -> None:
    """What lies outside the interval on either side was rejected at some look, what lies well inside was not.

    The interval need not hold the mean observed by now: bounds of earlier looks stay in force.
    """
    values = (np.random.default_rng(seed).random(400) < mean).astype(float)
    low, high = betting_bounds(values, alpha=ALPHA)
    assert 0 <= low < high <= 1
    if low > 0.01:
        assert rejected(capital(values, low - 0.002), alpha=ALPHA / 2)[-1]
    if high < 0.99:
        assert rejected(capital(values, high + 0.002, above=False), alpha=ALPHA / 2)[-1]
    middle = (low + high) / 2
    for above in (True, False):
        assert not rejected(capital(values, middle, above=above), alpha=ALPHA / 2)[-1]


def test_the_bounds_use_a_small_variance() -> None:
    """For data of little variance both sequences beat the fixed bound sqrt(log(2 / alpha) / 2n)."""
    values = np.random.default_rng(8).normal(0.5, 0.05, 2_000).clip(0, 1)
    low, high = betting_bounds(values, alpha=ALPHA)
    lower, upper = bernstein_sequence(values, alpha=ALPHA)
    hoeffding = 2 * math.sqrt(math.log(2 / ALPHA) / 2 / 2_000)
    assert max(high - low, upper[-1] - lower[-1]) < hoeffding / 2


def test_the_asymptotic_halfwidth_follows_its_formula() -> None:
    """The closed form equals that of the paper, and is narrowest, against a fixed width, near its horizon."""
    n, v, at = 500, 0.4, 1_000.0
    rho2 = (-2 * math.log(ALPHA) + math.log(-2 * math.log(ALPHA)) + 1) / at
    paper = math.sqrt(2 * (n * v * rho2 + 1) / (n**2 * rho2) * math.log(math.sqrt(n * v * rho2 + 1) / ALPHA))
    assert float(asymptotic_halfwidth(n, v, alpha=ALPHA, at=at)) == pytest.approx(paper)


def test_two_arms_are_compared() -> None:
    """The interval is around the difference; before the burn-in there is none."""
    low, high = difference_sequence((1_000, 0.5, 0.25), (3_000, 0.6, 0.24), alpha=ALPHA)
    assert low < 0.1 < high
    with pytest.raises(ValueError, match="observations in each arm"):
        difference_sequence((199, 0.5, 0.25), (3_000, 0.6, 0.24), alpha=ALPHA)


def test_a_healthy_split_seldom_alarms_and_a_broken_one_does() -> None:
    """Over 1,000 looks at most alpha of healthy experiments alarm; 45 to 55 instead of half alarms in all."""
    generator = np.random.default_rng(9)
    for share, low, high in ((0.5, 0.0, allowed(ALPHA, 300)), (0.45, 1.0, 1.0)):
        alarms = 0
        for _ in range(300):
            first = np.cumsum(generator.binomial(20, share, size=1_000))
            total = 20.0 * np.arange(1, 1_001)
            evidence = sample_ratio_path(np.stack([first, total - first], axis=-1), (0.5, 0.5))
            alarms += bool(evidence.max() >= math.log(1 / ALPHA))
        assert low <= alarms / 300 <= high


def test_sample_ratio_evidence_follows_its_formula() -> None:
    """For one unit in one arm the Bayes factor is 1; counts as planned speak for the plan."""
    assert sample_ratio_evidence((1, 0), (0.3, 0.7)) == pytest.approx(0.0, abs=1e-9)
    assert sample_ratio_evidence((3_000, 7_000), (0.3, 0.7)) < 0
    with pytest.raises(ValueError, match="sum to 1"):
        sample_ratio_evidence((1, 1), (0.3, 0.6))


@pytest.mark.parametrize(("first", "second", "expected"), [(10, 2, 0.03857421875), (5, 5, 1.0), (0, 0, 1.0)])
def test_mcnemar_equals_the_binomial_test(first, second, expected) -> None:
    """The exact test's p-value is the two-sided binomial one of the discordant pairs."""
    assert mcnemar_exact(first, second) == pytest.approx(expected)
    assert mcnemar_exact(second, first) == mcnemar_exact(first, second)


def test_adjusted_p_values_equal_published_examples() -> None:
    """Holm and Benjamini-Hochberg give the values of R's p.adjust."""
    raw = {"a": 0.01, "b": 0.04, "c": 0.03, "d": 0.005}
    assert holm(raw) == pytest.approx({"a": 0.03, "b": 0.06, "c": 0.06, "d": 0.02})
    assert benjamini_hochberg(raw) == pytest.approx({"a": 0.02, "b": 0.04, "c": 0.04, "d": 0.02})


def test_cuped_keeps_the_mean_and_takes_the_explained_variance_out() -> None:
    """The variance falls by the squared correlation with the covariate; a constant covariate changes nothing."""
    generator = np.random.default_rng(10)
    before = generator.normal(size=2_000)
    metric = 0.8 * before + 0.6 * generator.normal(size=2_000)
    adjusted = cuped(metric, before)
    correlation = np.corrcoef(metric, before)[0, 1]
    assert adjusted.mean() == pytest.approx(metric.mean())
    assert adjusted.var() == pytest.approx(metric.var() * (1 - correlation**2))
    assert (cuped(metric, np.ones_like(metric)) == metric).all()


def test_clusters_widen_the_interval() -> None:
    """Ten answers to each prompt that always agree are worth one: the interval is that of the prompts."""
    prompts = np.random.default_rng(11).normal(size=50)
    repeated = np.repeat(prompts, 10)
    clustered = clustered_bootstrap(list(repeated), [index // 10 for index in range(500)])
    assert clustered.low == pytest.approx(paired_bootstrap(list(prompts)).low)
    naive = paired_bootstrap(list(repeated))
    assert clustered.high - clustered.low > 2 * (naive.high - naive.low)
