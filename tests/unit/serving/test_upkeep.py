"""Drafter upkeep: every decision, from tables and from random states."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from core.drafter import DraftCounts, Drafter, DrafterStatus, DrafterTrial
from serving.speculation.upkeep import (
    Abandon,
    Begin,
    FastReplica,
    Keep,
    Load,
    Reject,
    Retrain,
    Rules,
    Target,
    decide,
    has_fallen,
    judge,
)

RULES = Rules(trial_drafts=100, retrain_drop=0.1, retrain_on_promotion=True)
QUIET = Rules(trial_drafts=100, retrain_drop=0.1, retrain_on_promotion=False)


def counts(share: float, drafts: int = 100, **fields: Any) -> DraftCounts:
    """``drafts`` drafts of three tokens, of which ``share`` was accepted."""
    return DraftCounts(drafts=drafts, draft_tokens=3 * drafts, accepted_tokens=round(3 * drafts * share), **fields)


def drafter(number: int, status: DrafterStatus = DrafterStatus.CANDIDATE, **fields: Any) -> Drafter:
    """A Drafter for ``coder@1``."""
    values = {
        "id": f"drf_{number}",
        "base": "b",
        "policy": "coder",
        "number": number,
        "path": f"/d/{number}",
        "created_at": 0.0,
    }
    return Drafter(**(values | {"status": status, "target_version": 1} | fields))


LIVE = drafter(1, DrafterStatus.LIVE, acceptance=0.6)


def replica(name: str = "dep_a", **fields: Any) -> FastReplica:
    """A ready replica that drafts with the live Drafter."""
    values = {
        "deployment_id": name,
        "ready": True,
        "restarting": False,
        "failed": False,
        "drafter_id": LIVE.id,
        "speculating": True,
        "lately": counts(0.6),
    }
    return FastReplica(**(values | fields))


def on_trial(share: float, drafts: int = 100, before: DraftCounts | None = None) -> Drafter:
    """Number 2 on ``dep_a``."""
    trial = DrafterTrial(
        deployment_id="dep_a",
        before_id=LIVE.id,
        before=before or counts(0.5),
        counts=counts(share, drafts),
        started_at=0.0,
    )
    return drafter(2, trial=trial)


def ask(**fields: Any) -> Any:
    """``decide`` with one quiet replica, a live Drafter for the promoted version, and no candidate."""
    values = {
        "live": LIVE,
        "candidates": [],
        "replicas": [replica()],
        "targets": [Target("coder", 1, 1.0)],
        "rules": RULES,
        "has_configured": True,
    }
    return decide(**(values | fields))


def test_nothing_is_done_where_all_is_well() -> None:
    """A live Drafter for the promoted version that accepts as before stays."""
    assert ask() is None


def test_a_candidate_is_tried_where_most_is_drafted() -> None:
    """On the busiest replica, once enough is known of the Drafter before."""
    busy, idle = replica("dep_b", lately=counts(0.5, 300)), replica("dep_a", lately=counts(0.5, 20))
    assert ask(candidates=[drafter(2)], replicas=[idle, busy]) == Begin("dep_b", drafter(2))
    assert ask(candidates=[drafter(2)], replicas=[idle]) is None
    off = replica(speculating=False, lately=DraftCounts())
    assert ask(candidates=[drafter(2)], replicas=[off]) == Begin("dep_a", drafter(2))


def test_only_the_newest_candidate_is_tried() -> None:
    """Older ones are rejected first."""
    decision = ask(candidates=[drafter(2), drafter(3)])
    assert isinstance(decision, Reject)
    assert decision.drafter.number == 2


def test_a_trial_ends_by_what_was_accepted() -> None:
    """Better stays, worse goes, and too few drafts say nothing."""
    carrying = [replica(drafter_id="drf_2")]
    assert isinstance(ask(candidates=[on_trial(0.6)], replicas=carrying), Keep)
    assert isinstance(ask(candidates=[on_trial(0.4)], replicas=carrying), Reject)
    assert ask(candidates=[on_trial(0.9, drafts=99)], replicas=carrying) is None


def test_a_trial_survives_what_happens_to_its_replica() -> None:
    """A replica that lost the candidate gets it again, a vanished one ends the trial, a start that fails rejects."""
    assert ask(candidates=[on_trial(0.6)], replicas=[replica()]) == Load("dep_a", on_trial(0.6))
    assert ask(candidates=[on_trial(0.6)], replicas=[replica(restarting=True)]) is None
    assert isinstance(ask(candidates=[on_trial(0.6)], replicas=[replica("dep_z")]), Abandon)
    failed = replica(ready=False, failed=True, drafter_id="drf_2")
    assert isinstance(ask(candidates=[on_trial(0.6)], replicas=[failed]), Reject)


def test_replicas_follow_the_live_drafter_one_by_one() -> None:
    """Also back from a rejected candidate, and to the configured folder where nothing is live."""
    behind = [replica("dep_a", drafter_id="drf_9"), replica("dep_b", drafter_id=None)]
    assert ask(replicas=behind) == Load("dep_a", LIVE)
    assert ask(replicas=[*behind, replica("dep_c", restarting=True)]) is None
    assert ask(live=None, replicas=[behind[0]], rules=QUIET) == Load("dep_a", None)
    assert ask(live=None, replicas=[behind[0]], rules=QUIET, has_configured=False) is None
    stuck = replica("dep_b", ready=False, failed=True, drafter_id="drf_9")
    assert ask(replicas=[stuck]) == Load("dep_b", LIVE)
    assert ask(live=None, replicas=[stuck], has_configured=False) == Load("dep_b", None)


def test_a_fall_asks_for_a_successor() -> None:
    """More than the configured share below the value at the last Drafter; not less, not on few drafts."""
    decision = ask(replicas=[replica(lately=counts(0.5))], rules=QUIET)
    assert isinstance(decision, Retrain)
    assert (decision.policy, decision.version, decision.after) == ("coder", 1, LIVE.id)
    assert ask(replicas=[replica(lately=counts(0.55))], rules=QUIET) is None
    assert ask(replicas=[replica(lately=counts(0.1, drafts=99))], rules=QUIET) is None


def test_a_promotion_asks_for_a_successor() -> None:
    """Of the live Drafter's own Policy, or of the newest promoted version where it has none; unless switched off."""
    targets = [Target("coder", 2, 1.0), Target("writer", 5, 9.0)]
    decision = ask(targets=targets)
    assert isinstance(decision, Retrain)
    assert (decision.policy, decision.version) == ("coder", 2)
    assert ask(targets=targets, rules=QUIET) is None
    of_base = drafter(1, DrafterStatus.LIVE, policy=None, target_version=0)
    decision = ask(live=of_base, targets=targets)
    assert isinstance(decision, Retrain)
    assert (decision.policy, decision.version) == ("writer", 5)
    assert ask(live=of_base, targets=[Target("coder", 0, 1.0)]) is None
    assert isinstance(ask(live=None, replicas=[replica(drafter_id=None)], targets=targets), Retrain)


def test_a_dearer_drafter_is_judged_by_speed_at_like_load() -> None:
    """Slower at the same load loses; where load differs or time is short, acceptance decides."""
    before = counts(0.5, busy_seconds=40.0, request_seconds=80.0, output_tokens=4000)
    slower = counts(0.6, busy_seconds=40.0, request_seconds=80.0, output_tokens=3000)
    assert judge(slower, before)[0] is False
    assert "slower" in judge(slower, before)[1]
    assert judge(slower.model_copy(update={"request_seconds": 240.0}), before)[0] is True
    assert judge(slower.model_copy(update={"busy_seconds": 4.0}), before)[0] is True


shares = st.floats(min_value=0.0, max_value=1.0)


@given(share=shares, earlier=shares, drafts=st.integers(100, 10_000))
@settings(deadline=None)
def test_what_is_kept_never_accepts_less(share: float, earlier: float, drafts: int) -> None:
    """A candidate that stays accepts at least what the one before did."""
    found, before = counts(share, drafts), counts(earlier, drafts)
    keep, reason = judge(found, before)
    assert keep == (found.acceptance >= before.acceptance)
    assert reason


@given(was=st.floats(0.01, 1.0), share=shares, drop=st.floats(0.01, 0.9), drafts=st.integers(0, 300))
@settings(deadline=None)
def test_a_fall_is_relative_and_believed_on_enough_drafts(was: float, share: float, drop: float, drafts: int) -> None:
    """Exactly when at least the trial's number of drafts accepted less than (1 - drop) of the value before."""
    live = LIVE.model_copy(update={"acceptance": was})
    lately = counts(share, drafts)
    rules = Rules(trial_drafts=100, retrain_drop=drop, retrain_on_promotion=False)
    assert has_fallen(live, lately, rules) == (drafts >= 100 and lately.acceptance < (1 - drop) * was)


replica_states = st.builds(
    replica,
    st.sampled_from(["dep_a", "dep_b"]),
    ready=st.booleans(),
    restarting=st.booleans(),
    drafter_id=st.sampled_from([None, "drf_1", "drf_2", "drf_9"]),
    speculating=st.booleans(),
    lately=st.builds(counts, shares, st.integers(0, 200)),
)


@given(
    live=st.sampled_from([None, LIVE]),
    candidates=st.sampled_from([[], [drafter(2)], [drafter(2), drafter(3)], [on_trial(0.4)], [on_trial(0.7)]]),
    replicas=st.lists(replica_states, max_size=3, unique_by=lambda one: one.deployment_id),
    configured=st.booleans(),
)
@settings(deadline=None)
def test_no_replica_is_touched_that_cannot_take_it(live, candidates, replicas, configured) -> None:
    """What is loaded goes to a ready replica without a restart ahead; a live Drafter is never rejected."""
    decision = ask(live=live, candidates=candidates, replicas=replicas, has_configured=configured)
    if isinstance(decision, Load | Begin):
        chosen = next(one for one in replicas if one.deployment_id == decision.deployment_id)
        assert chosen.ready
        assert not chosen.restarting
        assert decision.drafter is None or chosen.drafter_id != decision.drafter.id or decision.drafter.trial is None
    if isinstance(decision, Keep | Reject | Abandon):
        assert decision.drafter in candidates
