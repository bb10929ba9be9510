"""The two-sample test and the evidence gathered from it."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.statistics.two_sample import e_value, gathered, stratified_permutation_test

VALUES = st.lists(st.floats(-5, 5), min_size=2, max_size=4)


def strata(generator: np.random.Generator, shift: float) -> list[list[float]]:
    return [list(generator.normal(prompt + shift, 1.0, 6)) for prompt in range(12)]


def test_p_values_are_valid_without_a_difference():
    """Where both sides have one distribution, p <= 0.1 comes in about a tenth of the tests, whatever the strata."""
    generator = np.random.default_rng(0)
    found = [
        stratified_permutation_test(strata(generator, 0.0), strata(generator, 0.0), resamples=200, seed=number)
        for number in range(200)
    ]
    assert np.mean(np.asarray(found) <= 0.1) < 0.17
    assert np.mean(np.asarray(found) <= 0.5) == pytest.approx(0.5, abs=0.12)


def test_a_shift_is_found_though_prompts_differ_more():
    """A shift of half a standard deviation is found among prompts that lie far apart."""
    generator = np.random.default_rng(1)
    assert stratified_permutation_test(strata(generator, 0.0), strata(generator, 0.8), seed=0) < 0.01


@given(st.lists(VALUES, min_size=1, max_size=4), st.integers(0, 10))
@settings(max_examples=50, deadline=None)
def test_equal_samples_never_speak_against_sameness(samples, seed):
    """The same samples on both sides give p = 1, and the test does not care which side is first."""
    assert stratified_permutation_test(samples, samples, resamples=50, seed=seed) == 1.0
    other = [[value + 1.0 for value in stratum] for stratum in samples]
    one = stratified_permutation_test(samples, other, resamples=50, seed=seed)
    assert 0.0 < one <= 1.0


def test_strata_must_match():
    """A missing stratum or an empty one is refused."""
    with pytest.raises(ValueError, match="same strata"):
        stratified_permutation_test([[1.0]], [])
    with pytest.raises(ValueError, match="sample on both sides"):
        stratified_permutation_test([[1.0]], [[]])


def test_e_values_are_fair_bets():
    """Over uniform p-values the mean e-value is 1, so that evidence is not made of nothing."""
    grid = (np.arange(100_000) + 0.5) / 100_000
    assert np.mean([e_value(float(p)) for p in grid]) == pytest.approx(1.0, abs=0.02)
    with pytest.raises(ValueError, match="p-value"):
        e_value(0.0)


def test_evidence_needs_repeated_surprise_and_forgets_calm():
    """A thousand comes from several small p-values; p-values in the middle never let it fall below a half."""
    evidence = 1.0
    for _ in range(100):
        evidence = gathered(evidence, 0.7)
    assert 0.5 < evidence < 1.0
    for _ in range(5):
        evidence = gathered(evidence, 0.001)
    assert evidence > 1_000.0


def test_false_alarms_are_as_rare_as_promised():
    """Without a difference, a threshold of 20 is passed in clearly fewer than one of twenty tests."""
    generator = np.random.default_rng(2)
    alarms, evidence = 0, 1.0
    for p in generator.uniform(1e-9, 1.0, 20_000):
        evidence = gathered(evidence, float(p))
        if evidence >= 20.0:
            alarms, evidence = alarms + 1, 1.0
    assert alarms <= 20_000 / 20
