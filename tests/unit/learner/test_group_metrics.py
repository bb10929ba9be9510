"""What a step's groups showed, by Domain and for the choice of later Tasks; what is dropped is counted."""

import pytest

from core.config.learner import LearnerSection
from core.episode import EpisodeStatus, StopReason
from core.policy import PolicySpan
from learner.grpo_batch import GrpoBatch, build_batch
from learner.intake import Attempt
from tests import nouns

LINE = (0, 1, 2, 3)


def attempt(group: str, number: int, reward: float | None, *, version: int = 3, **fields) -> Attempt:
    """An attempt of a group at its Task, with one Turn of three tokens."""
    name = f"{group}_{number}"
    turn = nouns.turn(
        id=f"turn_{name}",
        episode_id=f"ep_{name}",
        policy="coder",
        policy_spans=(PolicySpan(version=version),),
        prompt_ids=(1, 2),
        output_ids=(3, 4, 5),
        output_logprobs=(-0.1, -0.2, -0.3),
        trainable=True,
    )
    episode = nouns.episode(
        id=f"ep_{name}",
        status=EpisodeStatus.SCORED,
        group_id=group,
        task_id=f"task_{group}",
        trainable=True,
        reward=reward,
        turn_ids=(turn.id,),
        **({"domain": "sums", "success": None if reward is None else reward > 0.5} | fields),
    )
    return Attempt(episode=episode, turns=(turn,))


def batch(*groups: list[Attempt]) -> GrpoBatch:
    """Of one step."""
    return build_batch(groups, config=LearnerSection(max_staleness=2), line=LINE)


def test_each_domain_has_its_own_figures() -> None:
    """Rewards, successes, lengths and groups without variance of one Domain never enter another's."""
    found = batch(
        [attempt("a", 1, 1.0), attempt("a", 2, 0.0)],
        [attempt("b", 1, 0.0), attempt("b", 2, 0.0)],
        [attempt("c", 1, 1.0, domain="code"), attempt("c", 2, 0.5, domain="code")],
    )
    assert sorted(found.domains) == ["code", "sums"]
    sums, code = found.domains["sums"], found.domains["code"]
    assert (sums.groups, sums.attempts, sums.zero_variance_groups) == (2, 4, 1)
    assert (sums.reward_mean, sums.success_rate, sums.response_tokens) == (0.25, 0.25, 3.0)
    assert (code.reward_mean, code.zero_variance_groups) == (0.75, 0)


def test_groups_without_variance_are_dropped_and_counted() -> None:
    """They give no sample, stay in the figures, and are said to have taught nothing."""
    found = batch([attempt("a", 1, 1.0), attempt("a", 2, 1.0)], [attempt("b", 1, 1.0), attempt("b", 2, 0.0)])
    assert {sample.group_id for sample in found.samples} == {"b"}
    assert (found.values["groups"], found.values["zero_variance_groups"]) == (2.0, 1.0)
    assert [(one.task_id, one.useful) for one in found.outcomes] == [("task_a", False), ("task_b", True)]


def test_failed_attempts_are_negatives_and_missing_rewards_are_nothing() -> None:
    """A failed attempt trains with a negative advantage; one without a reward moves no baseline and no estimate."""
    with_missing = batch([attempt("a", 1, 1.0), attempt("a", 2, 0.0), attempt("a", 3, None)])
    without = batch([attempt("a", 1, 1.0), attempt("a", 2, 0.0)])
    assert with_missing.samples == without.samples
    assert with_missing.values["refused_no_reward"] == 1.0
    by_episode = {sample.episode_id: sample.advantages[-1] for sample in without.samples}
    assert by_episode["ep_a_1"] > 0 > by_episode["ep_a_2"]
    (outcome,) = with_missing.outcomes
    assert (outcome.solved, outcome.attempts) == (1.0, 2)


def test_truncated_attempts_are_counted_and_stay_in_the_baseline() -> None:
    """They leave the loss; the others' advantages are as if they were there."""
    found = batch([attempt("a", 1, 1.0), attempt("a", 2, 0.0, stop_reason=StopReason.TRUNCATED)])
    assert found.values["truncated"] == 1.0
    assert [sample.episode_id for sample in found.samples] == ["ep_a_1"]
    assert found.samples[0].advantages[-1] > 0


def test_without_a_success_the_reward_says_how_far_an_attempt_got() -> None:
    """Partial rewards count as parts of a success, within 0 and 1."""
    group = [attempt("a", number, reward, success=None) for number, reward in enumerate((0.25, 2.0, -1.0))]
    (outcome,) = batch(group).outcomes
    assert outcome.solved == pytest.approx(1.25)


def test_staleness_is_measured_in_versions_over_loss_tokens() -> None:
    """A token of the newest version is 0 behind, one of two versions before is 2."""
    found = batch([attempt("a", 1, 1.0), attempt("a", 2, 0.0, version=1)])
    assert (found.values["staleness_mean"], found.values["staleness_max"]) == (1.0, 2.0)
    assert "staleness_mean" not in batch([]).values


def test_a_group_that_may_not_train_says_nothing() -> None:
    """Without a counted attempt there is no figure and no outcome."""
    found = batch([attempt("a", 1, None), attempt("a", 2, None)])
    assert (found.samples, found.domains, found.outcomes) == ((), {}, ())
