"""How pairs become evidence, and what the Trials of a release say."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.release import ReleaseStep
from core.release_evidence import (
    against_base,
    claims,
    domain_intervals,
    harm_in,
    independent_pairs,
    rule_of,
    trial_point,
    verdict_of,
    with_differences,
    with_pairs,
)
from core.release_plan import ReleasePlan
from core.release_rule import Family, Outcome, ReleaseRule, open_trial
from core.release_run import ReleaseRun
from core.shadow import ShadowPair, ShadowStatus

RULE = ReleaseRule(targets=("maths",), families={"all": Family(domains=("maths",))}, guardrails={"errors": 0.02})
PLAN = ReleasePlan(policy="coder", rule=RULE, suites=("held-out",))


def pair(number: int, *, episode: int | None = None, **fields) -> ShadowPair:
    values = {
        "id": f"pair{number}",
        "experiment_id": "exp",
        "policy": "coder",
        "domain": "maths",
        "turn_id": f"turn{number}",
        "episode_id": f"ep{number if episode is None else episode}",
        "status": ShadowStatus.SCORED,
        "primary_arm": "primary",
        "candidate_arm": "candidate",
        "primary_score": 0.2,
        "candidate_score": 0.9,
    }
    return ShadowPair(**(values | fields))


def run(**trials) -> ReleaseRun:
    values = {"trial": open_trial(rule_of(PLAN)), "live": open_trial(rule_of(PLAN))} | trials
    step = ReleaseStep.SHADOW
    return ReleaseRun(id="rrun_1", policy="coder", version=2, baseline=1, plan=PLAN, step=step, **values)


def seen(pairs: list[ShadowPair]):
    return independent_pairs(pairs, judged_before=set(), answered_before=set())


def test_one_pair_of_each_episode_counts() -> None:
    """Requests of one Episode are one observation, also over several looks; what was not mirrored is none."""
    judged, answered = set(), set()
    first = [pair(0, episode=7), pair(1, episode=7), pair(2, status=ShadowStatus.SKIPPED)]
    found = independent_pairs(first, judged_before=judged, answered_before=answered)
    assert [one.id for one in found.judged] == ["pair0"]
    later = independent_pairs([pair(3, episode=7), pair(4)], judged_before=judged, answered_before=answered)
    assert [one.id for one in later.judged] == ["pair4"]


def test_an_unscored_pair_counts_for_events_alone() -> None:
    """Without a score there is no difference, but the candidate's answer was there; a later one is judged."""
    found = seen([pair(0, candidate_score=None, status=ShadowStatus.UNSCORED), pair(1, episode=0)])
    assert [one.id for one in found.answered] == ["pair0"]
    assert [one.id for one in found.judged] == ["pair1"]


def test_failures_are_errors_whatever_the_plan_calls_them() -> None:
    """``errors`` in a policy file is the event ``error``, and a candidate that does not answer breaks it."""
    assert rule_of(PLAN).guardrails == {"error": 0.02}
    trial = with_pairs(open_trial(rule_of(PLAN)), seen([pair(n, status=ShadowStatus.FAILED) for n in range(40)]))
    assert any("guardrail error is broken" in reason for reason in harm_in(trial))
    bare = PLAN.model_copy(update={"rule": RULE.model_copy(update={"guardrails": {}})})
    assert rule_of(bare).guardrails == {"error": PLAN.shadow.max_error_share}


def test_the_verdict_grows_with_the_evidence() -> None:
    """Nothing is decided on little, a gain is proven by enough, and what is open at the end is a rejection."""
    little, much = (with_differences(open_trial(rule_of(PLAN)), {"maths": [0.5] * count}) for count in (3, 300))
    assert verdict_of(run(trial=little), over=False)[0] is Outcome.CONTINUE
    outcome, reasons = verdict_of(run(trial=little), over=True)
    assert (outcome, reasons[0].startswith("not proven by the end")) == (Outcome.REJECT, True)
    assert verdict_of(run(trial=much), over=False) == (Outcome.PROMOTE, ())


def test_live_harm_is_not_outweighed() -> None:
    """A proof by Suites does not help a candidate that live traffic disproves."""
    proven = with_differences(open_trial(rule_of(PLAN)), {"maths": [0.5] * 300})
    harmed = with_differences(open_trial(rule_of(PLAN)), {"maths": [-0.5] * 300})
    outcome, reasons = verdict_of(run(trial=proven, live=harmed), over=False)
    assert outcome is Outcome.REJECT
    assert all(reason.startswith("live traffic") for reason in reasons)


def test_a_loss_against_the_base_is_named() -> None:
    """The Base is a bar of its own; Domains of no family say nothing."""
    assert against_base(RULE, {"maths": [-0.4] * 300, "poems": [-1.0] * 300})[0].startswith("against the Base")
    assert against_base(RULE, {"maths": [0.0] * 300, "poems": [-1.0] * 300}) == ()


def test_claims_say_what_decide_says() -> None:
    """The table of claims and the decision agree: promoted when all are proven."""
    trial = with_differences(open_trial(RULE), {"maths": [0.4] * 200})
    assert all(claim.proven for claim in claims(trial))
    assert trial.decide().outcome is Outcome.PROMOTE
    point = trial_point(run(trial=trial), ReleaseStep.SHADOW, 1.0)
    assert point.pairs == 200
    assert point.proof["gain maths"] >= math.log(1 / RULE.alpha)
    assert "guardrail errors" in point.harm


@settings(max_examples=30, deadline=None)
@given(st.lists(st.sampled_from([-1.0, -0.5, 0.0, 0.5, 1.0]), min_size=1, max_size=60))
def test_intervals_hold_their_mean(values: list[float]) -> None:
    """Whatever was seen, the interval lies in [-1, 1], holds the mean, and is wider at a smaller alpha."""
    wide, narrow = (
        domain_intervals(RULE, {"maths": values}, source="suite", alpha=alpha)[0] for alpha in (0.001, 0.2)
    )
    assert -1.0 <= wide.low <= narrow.low <= narrow.mean + 0.01
    assert narrow.mean - 0.01 <= narrow.high <= wide.high <= 1.0
    assert wide.margin == pytest.approx(0.06)


@given(st.lists(st.integers(0, 5), max_size=40), st.integers(0, 40))
def test_pages_of_pairs_are_the_same_as_all_at_once(episodes: list[int], cut: int) -> None:
    """However the pairs are cut into looks, the same ones count."""
    pairs = [pair(number, episode=episode) for number, episode in enumerate(episodes)]
    judged, answered = set(), set()
    parts = [
        independent_pairs(part, judged_before=judged, answered_before=answered) for part in (pairs[:cut], pairs[cut:])
    ]
    assert (*parts[0].judged, *parts[1].judged) == seen(pairs).judged


def test_the_history_stays_short() -> None:
    """Many looks are thinned, and the newest is always there."""
    moved = run()
    for number in range(1_000):
        point = trial_point(moved, ReleaseStep.SHADOW, float(number)).model_copy(update={"pairs": number})
        moved = moved.seen(point)
    assert len(moved.history) <= 200
    assert moved.history[-1].pairs == 999
    assert [one.pairs for one in moved.history] == sorted(one.pairs for one in moved.history)
