"""Intervals agree with independent values and cover what they promise."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.statistics.intervals import paired_bootstrap, wilson_interval


def test_wilson_interval_matches_published_values():
    """81 of 263 gives [0.2553, 0.3662] (Newcombe 1998, table I, method 3)."""
    interval = wilson_interval(81, 263)
    assert interval.low == pytest.approx(0.2553, abs=5e-5)
    assert interval.high == pytest.approx(0.3662, abs=5e-5)


def test_bootstrap_is_close_to_the_normal_interval_for_many_tasks():
    """With 400 differences the percentile bootstrap is near mean +- 1.96 standard errors."""
    differences = np.random.default_rng(1).choice([-1.0, 0.0, 1.0], size=400, p=[0.1, 0.6, 0.3])
    interval = paired_bootstrap(list(differences))
    error = differences.std() / np.sqrt(len(differences))
    assert interval.low == pytest.approx(differences.mean() - 1.96 * error, abs=0.006)
    assert interval.high == pytest.approx(differences.mean() + 1.96 * error, abs=0.006)


def test_bootstrap_covers_the_truth_about_as_often_as_promised():
    """Over 300 simulated comparisons of no difference, at most 9% of 95% intervals miss zero."""
    generator = np.random.default_rng(7)
    misses = 0
    for seed in range(300):
        differences = generator.choice([-1.0, 0.0, 1.0], size=200, p=[0.15, 0.7, 0.15])
        interval = paired_bootstrap(list(differences), resamples=1000, seed=seed)
        misses += not interval.low <= 0.0 <= interval.high
    assert misses / 300 <= 0.09


@given(st.lists(st.floats(-1, 1), min_size=1, max_size=60))
def test_bootstrap_interval_holds_its_mean_and_stays_in_range(differences):
    """low <= mean <= high up to rounding, inside the range of the data, and the same seed gives the same."""
    interval = paired_bootstrap(differences, resamples=500)
    assert interval == paired_bootstrap(differences, resamples=500)
    assert min(differences) - 1e-9 <= interval.low <= interval.high <= max(differences) + 1e-9


@given(st.integers(0, 50), st.integers(1, 50))
def test_wilson_interval_holds_the_share(successes, extra):
    """The observed share is inside, and the interval inside [0, 1]."""
    interval = wilson_interval(successes, successes + extra)
    assert 0.0 <= interval.low <= interval.mean + 1e-12
    assert interval.mean - 1e-12 <= interval.high <= 1.0


def test_nothing_to_resample_is_an_error():
    """An empty comparison has no interval."""
    with pytest.raises(ValueError, match="at least one"):
        paired_bootstrap([])
