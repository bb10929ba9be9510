"""Splitting keys, matching units, guardrails, the primary metric, and the ramp's decision; all pure."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from core.arm_comparison import OVERALL, compare_arms
from core.arm_outcome import ArmOutcome
from core.arm_units import block_sizes, units_of
from core.experiment import Arm, Experiment, assign
from core.guardrails import Guardrails, judge_guardrails
from core.ramp import (
    RampAction,
    at_share,
    check_sample_ratio,
    control_and_candidate,
    decide_ramp,
    gather_evidence,
    ramp_experiment,
    speaks_against,
)
from core.release_plan import RampStage, ReleasePlan
from core.release_rule import Family, ReleaseRule

SHARES = (0.01, 0.05, 0.2, 0.5, 1.0)


def plan(**fields: object) -> ReleasePlan:
    """A plan with stages that need 50 Episodes and no time."""
    stages = tuple(RampStage(share=share, min_seconds=0.0, min_episodes=50) for share in SHARES)
    rule = ReleaseRule(targets=("maths",), families={"all": Family(domains=("maths", "code"))})
    return ReleasePlan(**({"policy": "coder", "rule": rule, "suites": ("s",), "ramp": stages} | fields))


def experiment(of: ReleasePlan | None = None, stage: int = 0) -> Experiment:
    """A ramp at a stage."""
    whole = of or plan()
    found = ramp_experiment(
        whole,
        identity="exp_1",
        salt="salt",
        promoted=Arm(name="promoted", version=1, share=0.0),
        candidate=Arm(name="candidate", version=2, share=1.0),
        now=0.0,
    )
    for step in whole.ramp[1 : stage + 1]:
        found = at_share(found, step.share, now=0.0)
    return found


def outcomes_of(
    one: Experiment, count: int, seed: int = 0, *, reward: dict[str, float] | None = None, **rates: dict[str, float]
) -> list[ArmOutcome]:
    """Episodes of as many keys, hashed as the Experiment says, with events at these rates of each arm."""
    random = np.random.default_rng(seed)
    found = []
    for number in range(count):
        key = f"{seed}-{one.stage}-{number}"
        arm = assign(one, key).arm
        events = {name: 1 for name, rate in rates.items() if random.random() < rate[arm]}
        mean = None if reward is None else reward[arm]
        found.append(
            ArmOutcome(
                experiment_id=one.id,
                episode_id=f"ep_{key}",
                key=key,
                arm=arm,
                stage=one.stage,
                requests=1,
                events=events,
                reward=None if mean is None else float(random.random() < mean),
                created_at=float(number),
            )
        )
    return found


@given(st.text(min_size=1, max_size=40), st.text(max_size=8))
def test_a_key_that_has_the_candidate_keeps_it_as_the_ramp_grows(key: str, salt: str) -> None:
    """From stage to stage the candidate's keys are a superset of those before, and in the end all."""
    now = experiment().model_copy(update={"salt": salt})
    arms = [assign(now, key).arm]
    for share in SHARES[1:]:
        now = at_share(now, share, now=1.0)
        arms.append(assign(now, key).arm)
    assert arms == sorted(arms, reverse=True)
    assert arms[-1] == "candidate"


def test_shares_are_kept_and_salts_draw_anew() -> None:
    """Of 20,000 keys a fifth gets the candidate, and another salt gives it to others."""
    one = experiment(stage=2)
    other = one.model_copy(update={"salt": "another"})
    mine = {key for key in map(str, range(20_000)) if assign(one, key).arm == "candidate"}
    theirs = {key for key in map(str, range(20_000)) if assign(other, key).arm == "candidate"}
    assert 3_700 < len(mine) < 4_300
    assert 600 < len(mine & theirs) < 1_000


def test_a_share_only_grows() -> None:
    """Going down, or above 1, is refused; earlier shares are remembered."""
    one = experiment(stage=2)
    assert one.earlier_shares == (0.01, 0.05)
    for share in (0.2, 0.1, 1.5):
        with pytest.raises(ValueError, match="only grow"):
            at_share(one, share, now=0.0)


@given(st.floats(min_value=0.001, max_value=0.999))
def test_blocks_are_about_as_the_split(share: float) -> None:
    """No block asks for more of an arm than its share brings."""
    candidate, promoted = block_sizes(share)
    assert min(candidate, promoted) == 1
    assert candidate / promoted <= max(1.0, share / (1.0 - share)) + 1e-6
    assert promoted / candidate <= max(1.0, (1.0 - share) / share) + 1e-6


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_a_healthy_split_is_healthy_and_a_broken_one_is_found(stage: int) -> None:
    """Keys hashed as planned give no alarm; a third of the candidate's keys missing does."""
    one = experiment(stage=stage)
    whole = outcomes_of(one, 20_000, seed=stage)
    assert not check_sample_ratio(one, whole).broken
    kept = [item for place, item in enumerate(whole) if item.arm == "promoted" or place % 3]
    assert check_sample_ratio(one, kept).broken == (stage > 0)


def test_a_key_counts_where_it_was_first_seen() -> None:
    """A user who comes again in a later stage under the other arm is no second key of the split."""
    first, later = experiment(stage=1), experiment(stage=3)
    seen = outcomes_of(first, 4_000)
    again = [
        item.model_copy(
            update={
                "episode_id": f"{item.episode_id}-2",
                "arm": assign(later, item.key).arm,
                "stage": 3,
                "created_at": 1e6,
            }
        )
        for item in seen
    ]
    assert check_sample_ratio(later, [*seen, *again]).counts.keys() == {1}
    assert not check_sample_ratio(later, [*again, *seen]).broken


def test_an_episode_that_saw_two_arms_is_reported_and_left_out() -> None:
    """It counts in the split and under ``mixed``; its reward, and what the other arm answered, count for neither."""
    one = experiment(stage=3)
    whole = outcomes_of(one, 10)
    mixed = whole[0].model_copy(update={"mixed": True, "events": {"fallback": 1}, "reward": 0.0})
    evidence = gather_evidence(one, [mixed, *whole[1:]], now=1.0)
    assert sum(evidence.mixed.values()) == 1
    assert sum(evidence.episodes.values()) == 9
    assert len(units_of([mixed, *whole[1:]])) == 9
    assert sum(sum(arms.values()) for arms in evidence.sample_ratio.counts.values()) == 10


def test_a_candidate_that_fails_cannot_hide_behind_the_arm_that_stepped_in() -> None:
    """Where each of the candidate's requests failed and the promoted version answered, the errors are its own."""
    one = experiment(stage=3)
    seen = [
        item
        if item.arm == "promoted"
        else item.model_copy(update={"mixed": True, "requests": 2, "events": {"error": 1, "fallback": 1}})
        for item in outcomes_of(one, 400, reward={"promoted": 1.0, "candidate": 1.0})
    ]
    assert {unit.reward for unit in units_of(seen) if unit.arm == "candidate"} == {None}
    decision = decide_ramp(plan(), one, seen, now=1.0)
    assert decision.action is RampAction.ROLL_BACK
    assert any("guardrail error" in reason for reason in decision.reasons)


def test_one_busy_user_is_one_unit() -> None:
    """A user with many failed requests in one stage is a single observation."""
    one = experiment(stage=3).model_copy(update={"key": "user"})
    key = next(str(number) for number in range(99) if assign(one, str(number)).arm == "candidate")
    busy = [
        ArmOutcome(
            experiment_id="exp_1",
            episode_id=f"ep_{number}",
            key=key,
            arm="candidate",
            stage=3,
            requests=5,
            events={"error": 5},
        )
        for number in range(200)
    ]
    units = units_of([*busy, *outcomes_of(one, 100)])
    mine = [unit for unit in units if unit.key == key]
    assert [(unit.requests, unit.share("error")) for unit in mine] == [(1_000, 1.0)]
    verdicts = judge_guardrails(
        units, Guardrails(), shares=(0.01, 0.05, 0.2, 0.5), candidate="candidate", promoted="promoted"
    )
    assert not any(verdict.broken for verdict in verdicts)


@pytest.mark.parametrize(
    "event", ["error", "slow", "refusal", "invalid_tool_call", "long", "low_acceptance", "reward"]
)
def test_each_guardrail_finds_its_harm(event: str) -> None:
    """A candidate that is bad in one respect is stopped for it, and for nothing else."""
    one = experiment(stage=3)
    if event == "reward":
        seen = outcomes_of(one, 1_500, reward={"promoted": 0.8, "candidate": 0.3})
    else:
        seen = outcomes_of(one, 1_500, **{event: {"promoted": 0.02, "candidate": 0.6}})
    evidence = gather_evidence(one, seen, now=1.0)
    assert [verdict.name for verdict in evidence.guardrails if verdict.broken] == [event]
    assert len(speaks_against(evidence)) == 1


def test_a_limit_holds_whatever_the_other_arm_does() -> None:
    """A share of errors above the limit ends the ramp even at 100%, where there is nothing to compare with."""
    whole = plan(rule=plan().rule.model_copy(update={"guardrails": {"errors": 0.01}}))
    one = experiment(whole, stage=4)
    assert one.guardrails.limits == {"errors": 0.01}
    seen = outcomes_of(one, 300, error={"promoted": 0.0, "candidate": 0.1})
    decision = decide_ramp(whole, one, seen, now=1.0)
    assert decision.action is RampAction.ROLL_BACK
    assert "error" in decision.reasons[0]


def test_equal_arms_are_seldom_stopped() -> None:
    """Of 40 ramps of equal arms, each looked at ten times, at most two are stopped (alpha is 1%)."""
    one = experiment(stage=3)
    rates = {name: {"promoted": 0.1, "candidate": 0.1} for name in ("error", "slow", "refusal", "long")}
    stopped = 0
    for seed in range(40):
        seen = outcomes_of(one, 600, seed=seed, reward={"promoted": 0.5, "candidate": 0.5}, **rates)
        looks = (gather_evidence(one, seen[:end], now=1.0) for end in range(60, 601, 60))
        stopped += any(speaks_against(evidence) for evidence in looks)
    assert stopped <= 2


def test_hard_limits_need_no_statistics() -> None:
    """One answer whose log-probs are no numbers is enough, and so is what the fleet says."""
    one = experiment(stage=3)
    seen = outcomes_of(one, 4, nan_logprobs={"promoted": 0.0, "candidate": 1.0})
    assert decide_ramp(plan(), one, seen, now=1.0).action is RampAction.ROLL_BACK
    decision = decide_ramp(plan(), one, [], now=1.0, hard=["replica dep_a broke down"])
    assert (decision.action, decision.reasons) == (RampAction.ROLL_BACK, ("replica dep_a broke down",))


def test_a_stage_takes_its_time_and_its_count() -> None:
    """Hold until both are reached, then go on stage by stage, and promote from the last."""
    slow = plan(ramp=tuple(RampStage(share=share, min_seconds=60.0, min_episodes=20) for share in SHARES))
    one = experiment(slow, stage=3)
    seen = outcomes_of(one, 100)
    early = decide_ramp(slow, one, seen, now=59.0)
    assert (early.action, len(early.reasons)) == (RampAction.HOLD, 1)
    few = decide_ramp(slow, one, seen[:20], now=61.0)
    assert few.action is RampAction.HOLD
    ready = decide_ramp(slow, one, seen, now=61.0)
    assert (ready.action, ready.next_stage) == (RampAction.NEXT, 4)
    last = experiment(slow, stage=4)
    assert decide_ramp(slow, last, outcomes_of(last, 30), now=61.0).action is RampAction.PROMOTE


def test_the_primary_metric_gates_the_last_step_where_the_plan_says_so() -> None:
    """``not_worse`` waits for enough rewards; ``no_harm`` does not; a proven loss ends the ramp."""
    strict = plan(ramp_primary="not_worse")
    one = experiment(strict, stage=3)
    few = outcomes_of(one, 300, reward={"promoted": 0.5, "candidate": 0.5})
    assert decide_ramp(strict, one, few, now=1.0).action is RampAction.HOLD
    assert decide_ramp(plan(), one, few, now=1.0).action is RampAction.NEXT
    better = outcomes_of(one, 3_000, reward={"promoted": 0.4, "candidate": 0.6})
    assert decide_ramp(strict, one, better, now=1.0).action is RampAction.NEXT
    worse = outcomes_of(one, 3_000, reward={"promoted": 0.6, "candidate": 0.4})
    decision = decide_ramp(strict, one, worse, now=1.0)
    assert decision.action is RampAction.ROLL_BACK
    assert any("reward" in reason for reason in decision.reasons)


def test_a_changing_share_does_not_look_like_a_difference() -> None:
    """When rewards rise over time while the candidate's share grows, equal arms stay equal."""
    seen = []
    for stage, mean in ((1, 0.2), (2, 0.5), (3, 0.8)):
        seen += outcomes_of(experiment(stage=stage), 4_000, reward={"promoted": mean, "candidate": mean})
    units = units_of(seen)
    naive = [np.mean([unit.reward for unit in units if unit.arm == arm]) for arm in ("promoted", "candidate")]
    assert naive[1] - naive[0] > 0.05
    found = compare_arms(units, OVERALL, candidate="candidate", promoted="promoted", alpha=0.05)
    assert found.low is not None and found.high is not None
    assert found.low < 0.0 < found.high
    assert abs(found.difference or 0.0) < 0.03


def test_what_was_known_before_narrows_the_interval() -> None:
    """CUPED with a covariate that explains most of the reward leaves a small part of the variance."""
    one = experiment(stage=3)
    random = np.random.default_rng(1)
    seen = []
    for item in outcomes_of(one, 1_000):
        before = float(random.random())
        reward = min(1.0, max(0.0, before + float(random.normal(0, 0.05))))
        seen.append(item.model_copy(update={"covariate": before, "reward": reward}))
    found = compare_arms(units_of(seen), OVERALL, candidate="candidate", promoted="promoted", alpha=0.05)
    bare = [item.model_copy(update={"covariate": None}) for item in seen]
    plain = compare_arms(units_of(bare), OVERALL, candidate="candidate", promoted="promoted", alpha=0.05)
    assert found.variance_kept is not None and found.variance_kept < 0.1
    assert found.high is not None and found.low is not None and plain.high is not None and plain.low is not None
    assert found.high - found.low < 0.6 * (plain.high - plain.low)


def test_no_interval_before_the_burn_in() -> None:
    """Fewer than 200 units in an arm: the difference is not judged at all."""
    one = experiment(stage=3)
    seen = outcomes_of(one, 300, reward={"promoted": 0.0, "candidate": 1.0})
    assert not compare_arms(units_of(seen), OVERALL, candidate="candidate", promoted="promoted", alpha=0.05).judged


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 400), st.integers(0, 4), st.integers(0, 9))
def test_any_evidence_gives_a_decision(count: int, stage: int, seed: int) -> None:
    """Whatever came in, there is one decision, and it can be stored as JSON and read again."""
    one = experiment(stage=stage)
    seen = outcomes_of(one, count, seed=seed, reward={"promoted": 0.5, "candidate": 0.5})
    decision = decide_ramp(plan(), one, seen, now=1.0)
    assert type(decision).model_validate_json(decision.model_dump_json()) == decision
    assert control_and_candidate(one)[1].name == "candidate"


@pytest.mark.parametrize(
    "fields",
    [
        {"approvals": ("evalution",)},
        {"approvals": ("shadow",), "steps": ("evaluation", "ramp")},
        {"ramp": ()},
        {"notify_url": "ftp://hook.test/"},
    ],
)
def test_a_plan_with_a_mistake_is_refused(fields: dict[str, object]) -> None:
    """A misspelt approval would let a release go on unattended, and an empty ramp has no stage to begin with."""
    with pytest.raises(ValidationError, match=next(iter(fields))):
        plan(**fields)
