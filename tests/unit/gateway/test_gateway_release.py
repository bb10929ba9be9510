"""What a promotion needs, and what promotion and rollback change."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.errors import Conflict, InvalidRequest, InvalidTransition, VersionNotServed
from core.policy import Policy, PolicyVersion, ServingStatus
from core.release import RELEASE_TRANSITIONS, ReleaseStatus, ReleaseStep
from gateway.release import decide_promotion, decide_rollback, missing_steps, proves_better, required_steps
from tests import nouns

BETTER = {"gain": {"mean": 0.2, "low": 0.1, "high": 0.3}}
ALL = {"evaluation": BETTER, "shadow": {"passed": True}, "ramp": {"passed": True}}


def policy(**fields) -> Policy:
    return Policy(**({"name": "coder", "base": "smol"} | fields))


def version(number: int = 1, serving: ServingStatus = ServingStatus.LIVE) -> PolicyVersion:
    return PolicyVersion(policy="coder", version=number, kind="lora", origin="grpo", serving=serving)


def current(number: int = 0):
    return nouns.release(version=number, status=ReleaseStatus.PROMOTED)


def test_full_evidence_promotes_without_a_word():
    """With everything the release policy asks for nothing is missing and the old version retires."""
    move = decide_promotion(policy(), version(), nouns.release(evidence=ALL), current())
    assert (move.policy.promoted_version, move.policy.previous_version) == (1, 0)
    assert (move.promoted.status, move.promoted.missing) == (ReleaseStatus.PROMOTED, ())
    assert move.displaced is not None
    assert move.displaced.status is ReleaseStatus.RETIRED


@given(st.sets(st.sampled_from(sorted(ReleaseStep))), st.sets(st.sampled_from(sorted(ReleaseStep))))
def test_each_step_is_proven_or_skipped_with_a_reason_or_refuses(proven, skipped):
    """Promotion happens exactly when every required step has evidence or is skipped, and records the rest."""
    release = nouns.release(evidence={step.value: ALL[step.value] for step in proven})
    lacking = set(ReleaseStep) - proven
    if lacking <= skipped:
        move = decide_promotion(policy(), version(), release, current(), skip=skipped, reason="because")
        assert set(move.promoted.missing) == {step.value for step in lacking}
        return
    with pytest.raises(Conflict) as refused:
        decide_promotion(policy(), version(), release, current(), skip=skipped, reason="because")
    for step in lacking - skipped:
        assert step.value in refused.value.message


@pytest.mark.parametrize("reason", [None, "", "  "])
def test_a_skip_needs_a_reason(reason):
    """An operator cannot pass a step silently."""
    with pytest.raises(InvalidRequest):
        decide_promotion(policy(), version(), nouns.release(), current(), skip=list(ReleaseStep), reason=reason)


@pytest.mark.parametrize(
    ("evidence", "proof"),
    [
        (BETTER, True),
        ({"proven_better": True}, True),
        ({"proven_better": False} | BETTER, False),
        ({"gain": {"low": 0.0}}, False),
        ({"gain": {"low": -0.1}}, False),
        ({"gain": {"low": "high"}}, False),
        ({"gain": 1.0}, False),
        ({}, False),
        (True, False),
        (nouns.evaluation().model_dump(mode="json"), True),
    ],
)
def test_an_evaluation_proves_only_an_interval_above_zero(evidence, proof):
    """A gain whose interval touches zero proves nothing, and neither does evidence of another shape."""
    assert proves_better(evidence) is proof


def test_a_version_without_files_gets_no_traffic():
    """Neither a promotion nor a rollback moves traffic to a folder that was deleted."""
    gone = version().model_copy(update={"files_removed_at": 1.0})
    with pytest.raises(Conflict, match="deleted"):
        decide_promotion(policy(), gone, nouns.release(evidence=ALL), current())
    with pytest.raises(Conflict, match="deleted"):
        decide_rollback(
            policy(promoted_version=2), gone, nouns.release(status=ReleaseStatus.RETIRED), current(2), reason="r"
        )


def test_a_failed_step_is_not_evidence_for_itself():
    """A shadow that ran and did not pass counts as missing."""
    release = nouns.release(evidence=ALL | {"shadow": {"passed": False}})
    assert list(missing_steps(release, list(ReleaseStep))) == [ReleaseStep.SHADOW]


@pytest.mark.parametrize("serving", [status for status in ServingStatus if status is not ServingStatus.LIVE])
def test_only_live_versions_get_traffic(serving):
    """Neither promotion nor rollback moves traffic to a version that is not live."""
    with pytest.raises(VersionNotServed):
        decide_promotion(policy(), version(serving=serving), nouns.release(evidence=ALL), current())
    with pytest.raises(VersionNotServed):
        decide_rollback(policy(promoted_version=2), version(serving=serving), nouns.release(), current(2))


@given(st.sampled_from(sorted(ReleaseStatus)), st.sampled_from(sorted(ReleaseStatus)))
def test_no_move_breaks_the_transition_table(candidate, holder):
    """A promotion is decided only where both Releases may take the step."""
    release = nouns.release(evidence=ALL, status=candidate)
    displaced = nouns.release(version=0, status=holder)
    allowed = ReleaseStatus.PROMOTED in RELEASE_TRANSITIONS.successors(
        candidate
    ) and ReleaseStatus.RETIRED in RELEASE_TRANSITIONS.successors(holder)
    if allowed:
        decide_promotion(policy(), version(), release, displaced, reason="tried again")
    else:
        with pytest.raises(InvalidTransition):
            decide_promotion(policy(), version(), release, displaced, reason="tried again")


def test_what_was_rolled_back_comes_again_only_with_a_reason():
    """Evidence alone promotes no frozen candidate: somebody must answer for it."""
    frozen = nouns.release(evidence=ALL, status=ReleaseStatus.ROLLED_BACK)
    with pytest.raises(Conflict, match="rolled back"):
        decide_promotion(policy(), version(), frozen, current(0))
    assert decide_promotion(policy(), version(), frozen, current(0), reason="a false alarm").promoted.version == 1


def test_promoting_what_is_promoted_is_a_conflict():
    """The same promotion twice changes nothing the second time."""
    with pytest.raises(Conflict):
        decide_promotion(policy(promoted_version=1), version(), nouns.release(evidence=ALL), current(1))


def test_rollback_returns_to_the_version_before_and_forgets_it():
    """The earlier version is promoted again, the bad one is rolled back, and there is no second way back."""
    previous = nouns.release(version=1, status=ReleaseStatus.RETIRED)
    move = decide_rollback(
        policy(promoted_version=2, previous_version=1), version(1), previous, current(2), reason="worse"
    )
    assert (move.policy.promoted_version, move.policy.previous_version) == (1, None)
    assert move.promoted.status is ReleaseStatus.PROMOTED
    assert move.displaced is not None
    assert (move.displaced.status, move.displaced.reason) == (ReleaseStatus.ROLLED_BACK, "worse")


def test_an_unknown_release_policy_is_named():
    """A Policy cannot ask for rules that nobody wrote."""
    with pytest.raises(InvalidRequest, match="nothing"):
        required_steps(policy(release_policy="nothing"))
    assert required_steps(policy(release_policy="demo")) == {ReleaseStep.EVALUATION}
