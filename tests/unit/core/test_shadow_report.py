"""What the pairs of a shadow say."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.experiment import Arm, Experiment
from core.shadow import ShadowPair, ShadowStatus
from core.shadow_report import ALL, NO_DOMAIN, shadow_report

SHADOW = Experiment(
    id="exp_a",
    policy="coder",
    kind="shadow",
    arms=(Arm(name="primary", version=1, share=1.0), Arm(name="candidate", version=2, share=0.0)),
    salt="s",
)


def pair(number: int, first: float | None, second: float | None, **fields: object) -> ShadowPair:
    """A pair with these scores; none: unscored."""
    values = {
        "id": f"p{number}",
        "experiment_id": "exp_a",
        "policy": "coder",
        "domain": "maths",
        "turn_id": f"turn_{number}",
        "episode_id": f"ep_{number}",
        "status": ShadowStatus.UNSCORED if first is None else ShadowStatus.SCORED,
        "primary_arm": "primary",
        "candidate_arm": "candidate",
        "primary_score": first,
        "candidate_score": second,
        "primary_seconds": 1.0,
        "candidate_seconds": 2.0,
        "primary_tokens": 10,
        "candidate_tokens": 20,
        "judged_by": None if first is None else "exact/1",
    }
    return ShadowPair(**(values | fields))


def test_a_better_candidate_is_seen_and_an_equal_one_is_not():
    """Over enough pairs the interval leaves zero out; McNemar agrees; of equal answers zero stays inside."""
    better = shadow_report(SHADOW, [pair(n, 0.0, 1.0) if n % 2 else pair(n, 1.0, 1.0) for n in range(120)], {})
    (domain,) = better.domains
    assert (domain.difference, domain.better, domain.worse, domain.judged_by) == (0.5, 60, 0, {"exact/1": 120})
    assert 0.0 < domain.low <= 0.5 <= domain.high
    assert domain.bernstein_low <= 0.5 <= domain.bernstein_high
    assert domain.mcnemar_p < 1e-9
    equal = shadow_report(SHADOW, [pair(n, 1.0, 1.0) for n in range(50)], {}).domains[0]
    assert equal.low <= 0.0 <= equal.high
    assert equal.mcnemar_p == 1.0


def test_a_failed_candidate_scores_nothing_and_its_time_is_left_out():
    """It counts against the candidate where the client's answer has a score, and as an error."""
    lost = {"candidate_seconds": 99.0, "candidate_tokens": 0, "candidate_events": ("error",)}
    failed = pair(1, 1.0, None, status=ShadowStatus.FAILED, **lost)
    report = shadow_report(SHADOW, [failed, pair(2, None, None, candidate_events=("refusal",))], {})
    assert (report.mirrored, report.scored, report.unscored, report.failed) == (2, 0, 1, 1)
    assert (report.domains[0].difference, report.domains[0].worse) == (-1.0, 1)
    assert report.candidate.events == {"error": 1, "refusal": 1}
    assert (report.candidate.answers, report.candidate.mean_seconds, report.candidate.mean_tokens) == (1, 2.0, 20.0)
    assert (report.primary.median_seconds, report.primary.mean_tokens) == (1.0, 10.0)


def test_one_pair_of_each_episode_and_every_reason_is_reported():
    """Later pairs of an Episode are dependent and left to the bootstrap; reasons are as the store counted them."""
    pairs = [
        pair(1, 0.0, 1.0),
        pair(2, 1.0, 0.0, episode_id="ep_1"),
        pair(3, 0.0, 0.0, domain=None),
        pair(1, 0.0, 1.0),
    ]
    report = shadow_report(SHADOW, pairs, {"scored": 3, "skipped": 7, "skipped:busy": 4, "skipped:pinned": 3})
    assert report.dependent == 1
    assert [(one.domain, one.pairs) for one in report.domains] == [(ALL, 2), (NO_DOMAIN, 1), ("maths", 1)]
    assert report.skipped == {"busy": 4, "pinned": 3}
    assert report.clustered is not None
    assert report.clustered.mean == pytest.approx(0.0)


def test_without_a_pair_there_is_a_report():
    """It says that nothing was mirrored, and why."""
    report = shadow_report(SHADOW, [], {"skipped": 1, "skipped:busy": 1})
    assert (report.mirrored, report.domains, report.clustered, report.skipped) == (0, (), None, {"busy": 1})


@given(
    st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1), st.sampled_from(["a", "b", None])), min_size=1, max_size=20)
)
def test_intervals_hold_the_mean_that_was_seen(values):
    """Every interval has its own mean inside, and counts add up over Domains."""
    pairs = [pair(n, first, second, domain=domain) for n, (first, second, domain) in enumerate(values)]
    report = shadow_report(SHADOW, pairs, {})
    for one in report.domains:
        assert -1.0 <= one.low <= one.difference + 1e-9
        assert one.difference - 1e-9 <= one.high <= 1.0
    assert sum(one.pairs for one in report.domains if one.domain != ALL) == len(values)
