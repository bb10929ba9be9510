"""Simulated candidates end as they should, and the simulation's own numbers are right."""

import pytest

from bench.release.simulation import KINDS, RULE, fixed_horizon_prompts, simulate, upper_share

KIND = {kind.name: kind for kind in KINDS}


@pytest.mark.parametrize("name", [kind.name for kind in KINDS if not kind.better])
def test_what_is_not_better_is_hardly_ever_promoted(name) -> None:
    """Of 20 candidates of a kind that must not be promoted none is (each would be with at most 0.5%)."""
    assert not any(simulate(KIND[name], seed).promoted for seed in range(20))


def test_most_better_candidates_are_promoted() -> None:
    """A gain of 5 points is proven within the budget for at least 17 of 20."""
    runs = [simulate(KIND["better"], seed) for seed in range(20)]
    assert sum(run.promoted for run in runs) >= 17
    assert all(run.prompts <= RULE.prompts for run in runs)


def test_a_run_is_repeatable() -> None:
    """The same seed gives the same decision."""
    assert simulate(KIND["better"], 3) == simulate(KIND["better"], 3)


@pytest.mark.parametrize(("count", "trials", "expected"), [(0, 100, 0.02951), (5, 2_000, 0.00525), (3, 3, 1.0)])
def test_the_upper_bound_is_that_of_clopper_and_pearson(count, trials, expected) -> None:
    """The exact one-sided 95% bound, such as 1 - 0.05^(1/100) for none of 100."""
    assert upper_share(count, trials) == pytest.approx(expected, abs=5e-5)


def test_the_fixed_design_is_the_textbooks() -> None:
    """For a gain of 0.05 at variance 0.5, alpha 0.005 and power 0.9 a z-test needs 2,976 pairs."""
    assert fixed_horizon_prompts(0.05, alpha=0.005, power=0.9, variance=0.5) == 2_976
