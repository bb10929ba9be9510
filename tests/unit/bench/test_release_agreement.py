"""The numbers of the release benchmark and of ``core.statistics`` agree with SciPy's at a fixed horizon."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special, stats

from bench.release import plan, report, sequences
from bench.release.results import Findings, LiveOutcome, checks, tables
from bench.release.run import completed
from bench.release.simulation import fixed_horizon_prompts, paired_sample, upper_share
from core.statistics.covariate import cuped
from core.statistics.intervals import mcnemar_exact, wilson_interval
from core.statistics.multiplicity import benjamini_hochberg
from core.statistics.sample_ratio import sample_ratio_evidence
from core.statistics.sequences import asymptotic_halfwidth, betting_bounds, unit_interval


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 400), st.data())
def test_shares_have_scipys_bounds(trials: int, data: st.DataObject) -> None:
    """Clopper and Pearson's one-sided bound and Wilson's interval."""
    successes = data.draw(st.integers(0, trials))
    exact = 1.0 if successes == trials else stats.beta.ppf(0.95, successes + 1, trials - successes)
    assert upper_share(successes, trials) == pytest.approx(exact, abs=1e-6)
    theirs = stats.binomtest(successes, trials).proportion_ci(0.95, method="wilson")
    ours = wilson_interval(successes, trials)
    assert (ours.low, ours.high) == pytest.approx((theirs.low, theirs.high), abs=1e-6)


@given(st.integers(0, 60), st.integers(0, 60))
def test_the_paired_test_is_scipys_binomial_test(first: int, second: int) -> None:
    """McNemar's exact p-value."""
    theirs = stats.binomtest(first, first + second, 0.5).pvalue if first + second else 1.0
    assert mcnemar_exact(first, second) == pytest.approx(theirs, abs=1e-9)


@given(st.lists(st.floats(0.0, 1.0), min_size=1, max_size=12))
def test_false_discoveries_are_scipys(p_values: list[float]) -> None:
    """Benjamini and Hochberg's adjusted p-values."""
    named = {str(number): value for number, value in enumerate(p_values)}
    ours = list(benjamini_hochberg(named).values())
    assert ours == pytest.approx(stats.false_discovery_control(p_values, method="bh").tolist(), abs=1e-9)


def test_the_fixed_design_has_the_power_that_scipy_says() -> None:
    """Sample size and power of a one-sided z-test."""
    count = fixed_horizon_prompts(0.05, alpha=0.005, power=0.9, variance=0.4)
    drift = 0.05 / math.sqrt(0.4 / count)
    assert stats.norm.sf(stats.norm.isf(0.005) - drift) == pytest.approx(0.9, abs=1e-3)


def test_the_sample_ratio_evidence_is_the_ratio_of_likelihoods() -> None:
    """The Bayes factor of a Dirichlet-multinomial against a multinomial, by SciPy's own distributions."""
    counts, shares, concentration = (540, 460), (0.5, 0.5), 200.0
    prior = concentration * np.asarray(shares)
    theirs = stats.dirichlet_multinomial.logpmf(counts, prior, 1_000) - stats.multinomial.logpmf(
        counts, 1_000, shares
    )
    assert sample_ratio_evidence(counts, shares, concentration=concentration) == pytest.approx(theirs, abs=1e-6)
    assert special.betaln(*prior) < 0


def test_sequences_are_wider_than_fixed_intervals_and_of_their_order() -> None:
    """At one look a valid sequence costs width beside a t-interval: more than nothing, less than three times."""
    values = unit_interval(paired_sample(0.05, np.random.default_rng(5), 2_000))
    once = stats.t.interval(0.95, len(values) - 1, loc=values.mean(), scale=stats.sem(values))
    fixed = (once[1] - once[0]) / 2
    low, high = betting_bounds(values, alpha=0.05)
    assert low < once[0] < once[1] < high
    assert 1.0 < (high - low) / 2 / fixed < 3.0
    assert 1.0 < float(asymptotic_halfwidth(2_000, values.var(), alpha=0.05)) / fixed < 3.0


def test_the_covariate_adjustment_is_the_residual_of_a_regression() -> None:
    """CUPED is least squares on the covariate, with the mean kept."""
    generator = np.random.default_rng(6)
    before = generator.normal(size=300)
    after = 0.7 * before + generator.normal(size=300)
    fit = stats.linregress(before, after)
    expected = after - fit.slope * (before - before.mean())
    assert cuped(after.tolist(), before.tolist()) == pytest.approx(expected, abs=1e-9)


def test_the_simulated_gain_is_exact() -> None:
    """Paired samples have the mean that they are asked for."""
    generator = np.random.default_rng(7)
    for gain in (0.05, -0.062, -0.45):
        assert paired_sample(gain, generator, 400_000).mean() == pytest.approx(gain, abs=0.005)


def test_small_tables_hold_what_they_promise() -> None:
    """Coverage under peeking and false alarms of a short simulation are within what their theory allows."""
    short = plan.Plan(sequences=200, null_experiments=200, length=600)
    assert all(row["coverage"] >= 0.95 - sequences.halfwidth(short) for row in sequences.coverage_table(short))
    assert all(row["share"] <= max(4 * row["alpha"], 0.03) for row in sequences.null_table(short))


def test_one_part_is_kept_when_the_other_is_run() -> None:
    """A live run alone does not lose the simulation's checks; what was never run is said to be missing."""
    live = [LiveOutcome(name, end, end, 60.0, 500, "-", 0.2) for name, end in (("better", "promoted"), ("bad", "x"))]
    alone = {"checks": checks(Findings()), "tables": tables(Findings()), "settings": {}, "versions": {}}
    assert [one["value"] for one in alone["checks"]] == [None, None]
    simulated = {
        "checks": [{"name": "candidates", "value": 5_500, "unit": "", "target": ">= 2500"}, *alone["checks"]],
        "tables": {"live": [], "coverage": [1]},
        "settings": {"alpha": 0.005},
        "versions": {"hone": "1"},
    }
    found = alone | {"checks": checks(Findings(live=live)), "tables": tables(Findings(live=live))}
    whole = completed(found, simulated)
    assert [one["name"] for one in whole["checks"]] == ["candidates", "live_outcomes_right", "rollback_seconds_max"]
    assert [one["value"] for one in whole["checks"]] == [5_500, 2, 0.2]
    assert len(whole["tables"]["live"]) == 2
    assert "live_outcomes_right" in report.section(whole | {"machine": {}})
