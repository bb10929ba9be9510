"""Which attempts of a group train: the training-data contract."""

from dataclasses import dataclass

import pytest

from core.config.learner import LearnerSection
from core.episode import Episode, EpisodeStatus, StopReason
from core.errors import LearnerError
from core.policy import PolicySpan
from core.sample import TrainingSample
from core.turn import Timing, Turn
from core.variant import Variant
from learner.advantages import GroupAdvantages, group_advantages
from learner.grpo_batch import build_batch
from learner.intake import Attempt, GroupIntake, RefusalCause, group_samples, refusal, take_group


def attempt(
    number: int, reward: float | None, *, turn: dict[str, object] | None = None, **episode: object
) -> Attempt:
    """One attempt with one Turn at version 3; ``turn`` and the keywords override fields."""
    stored = Turn.model_validate(
        {
            "id": f"turn_{number}",
            "episode_id": f"ep_{number}",
            "index": 0,
            "tenant_id": "ten_1",
            "policy": "coder",
            "policy_spans": (PolicySpan(version=3),),
            "variant": Variant.STANDARD,
            "deployment_id": "dep_1",
            "prompt_ids": (1, 2),
            "output_ids": (3, 4),
            "output_logprobs": (-0.1, -0.2),
            "timing": Timing(started_at=0, total_seconds=0),
            "request_id": "req_1",
            "trainable": True,
        }
        | (turn or {})
    )
    whole = Episode.model_validate(
        {
            "id": f"ep_{number}",
            "tenant_id": "ten_1",
            "status": EpisodeStatus.SCORED,
            "policy": "coder",
            "group_id": "grp_1",
            "trainable": True,
            "reward": reward,
            "turn_ids": (f"turn_{number}",),
        }
        | episode
    )
    return Attempt(episode=whole, turns=(stored,))


@dataclass(frozen=True)
class Taken:
    """A group's intake with the samples and advantages made of it (Dr.GRPO)."""

    intake: GroupIntake
    advantages: GroupAdvantages
    samples: tuple[TrainingSample, ...]

    @property
    def episode_ids(self) -> tuple[str, ...]:
        return tuple(one.episode.id for one in self.intake.counted)


def take(*attempts: Attempt, line: tuple[int, ...] = (0, 1, 2, 3, 4)) -> Taken:
    intake = take_group(attempts, line=line, max_staleness=1)
    advantages = group_advantages(intake.rewards, scale="none")
    return Taken(intake=intake, advantages=advantages, samples=group_samples(intake, advantages))


GOOD, BAD = attempt(1, 1.0), attempt(2, 0.0)


def test_a_group_becomes_samples_with_relative_advantages() -> None:
    """Success and failure both train, with advantages around the group's mean."""
    taken = take(GOOD, BAD)
    assert [max(s.advantages, key=abs) for s in taken.samples] == [0.5, -0.5]
    assert taken.episode_ids == ("ep_1", "ep_2")
    assert taken.intake.rewards == (1.0, 0.0)
    assert not taken.intake.refused


@pytest.mark.parametrize(
    ("refused", "cause"),
    [
        (attempt(3, 1.0, status=EpisodeStatus.FINISHED), RefusalCause.NOT_SCORED),
        (attempt(3, None, status=EpisodeStatus.INVALID), RefusalCause.NOT_SCORED),
        (attempt(3, None), RefusalCause.NO_REWARD),
        (attempt(3, 1.0, trainable=False), RefusalCause.NO_CONSENT),
        (attempt(3, 1.0, turn={"trainable": False}), RefusalCause.NO_CONSENT),
        (attempt(3, 1.0, turn_ids=("turn_3", "turn_lost")), RefusalCause.NOT_DURABLE),
        (attempt(3, 1.0, turn_ids=()), RefusalCause.NOT_DURABLE),
        (attempt(3, 1.0, turn={"exact": False}), RefusalCause.NOT_EXACT),
        (attempt(3, 1.0, turn={"output_logprobs": (-0.1, float("nan"))}), RefusalCause.NOT_EXACT),
        (attempt(3, 1.0, turn={"policy": "writer"}), RefusalCause.OTHER_POLICY),
        (attempt(3, 1.0, turn={"policy_spans": (PolicySpan(version=2),)}), RefusalCause.STALE),
        (
            attempt(
                3,
                1.0,
                turn={"policy_spans": (PolicySpan(version=2), PolicySpan(version=4, first_token=1))},
            ),
            RefusalCause.STALE,
        ),
        (attempt(3, 1.0, turn={"policy_spans": (PolicySpan(version=5),)}), RefusalCause.AHEAD),
    ],
)
def test_a_refused_attempt_enters_nothing_and_is_counted(refused, cause) -> None:
    """The rest of the group is as if the refused attempt did not exist, and its cause is counted."""
    taken, without = take(GOOD, refused, BAD), take(GOOD, BAD)
    assert taken.samples == without.samples
    assert taken.advantages == without.advantages
    assert taken.episode_ids == without.episode_ids
    assert dict(taken.intake.refused) == {cause: 1}


def test_a_truncated_attempt_stays_in_the_baseline_and_leaves_the_loss() -> None:
    """Its reward moves the others' advantages and none of its tokens trains."""
    taken = take(GOOD, BAD, attempt(3, 0.0, stop_reason=StopReason.TRUNCATED))
    assert taken.advantages.values == pytest.approx((2 / 3, -1 / 3, -1 / 3))
    assert [sample.episode_id for sample in taken.samples] == ["ep_1", "ep_2"]
    assert taken.episode_ids == ("ep_1", "ep_2", "ep_3")
    assert taken.intake.truncated == 1


def test_a_zero_variance_group_gives_no_samples() -> None:
    """Equal rewards teach nothing: the group is flagged and gives nothing to the loss."""
    taken = take(GOOD, attempt(3, 1.0))
    assert taken.advantages.zero_variance
    assert taken.samples == ()


def test_the_base_counts_as_version_zero_by_any_name() -> None:
    """Turns that the Base answered under its own name train a Policy that is at version 0 or little above."""
    base = {"policy": "smollm2", "policy_spans": (PolicySpan(version=0),)}
    attempts = [attempt(1, 1.0, turn=base), attempt(2, 0.0, turn=base)]
    assert len(take(*attempts, line=(0, 1)).samples) == 2


@pytest.mark.parametrize(
    ("sampled_by", "cause"),
    [(7, None), (6, None), (1, RefusalCause.STALE), (3, RefusalCause.AHEAD), (8, RefusalCause.AHEAD)],
)
def test_staleness_is_counted_on_the_runs_own_line(sampled_by, cause) -> None:
    """Numbers that other runs took in between make nothing stale, and their versions never train this one."""
    turn = {"policy_spans": (PolicySpan(version=sampled_by),)}
    assert refusal(attempt(1, 1.0, turn=turn), line=(1, 6, 7), max_staleness=1) == cause


def test_mixed_groups_are_an_error() -> None:
    """Attempts of two groups have no common baseline: LearnerError."""
    with pytest.raises(LearnerError):
        take(GOOD, attempt(2, 0.0, group_id="grp_2"))


def test_an_empty_group_gives_nothing() -> None:
    """No attempts, no samples, no error."""
    taken = take()
    assert taken.samples == ()
    assert taken.advantages.zero_variance


def test_a_split_episode_is_counted_by_cause() -> None:
    """A prompt that does not extend gives two samples of one Episode and one counted break."""
    second = GOOD.turns[0].model_copy(update={"id": "turn_1b", "index": 1, "prompt_ids": (9, 9)})
    episode = GOOD.episode.model_copy(update={"turn_ids": ("turn_1", "turn_1b")})
    taken = take(Attempt(episode=episode, turns=(*GOOD.turns, second)), BAD)
    assert sum(taken.intake.breaks.values()) == 1
    assert [sample.episode_id for sample in taken.samples] == ["ep_1", "ep_1", "ep_2"]


@pytest.mark.parametrize("seed", range(6))
def test_the_control_deals_out_only_rewards_that_count(seed) -> None:
    """A refused attempt's reward reaches no attempt that trains."""
    refused = attempt(3, 9.0, turn={"policy_spans": (PolicySpan(version=5),)})
    group = [GOOD, refused, BAD]
    batch = build_batch([group], config=LearnerSection(), line=(3, 4), shuffle_seed=str(seed))
    assert batch.reward_mean == 0.5
    assert batch.episode_ids == ("ep_1", "ep_2")
