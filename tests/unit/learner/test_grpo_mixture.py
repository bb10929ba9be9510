"""What a GRPO step learns from beside its policy gradient."""

import pytest

from core.config.learner import LearnerSection
from core.episode import EpisodeStatus
from core.policy import PolicySpan
from learner.grpo_mixture import best_against_worst, best_samples
from learner.intake import Attempt, GroupIntake, take_group
from tests import nouns


def group(*rewards: float, branches: int = 1) -> GroupIntake:
    attempts = []
    for number, reward in enumerate(rewards):
        turns = tuple(
            nouns.turn(
                id=f"t{number}{branch}",
                episode_id=f"ep_{number}",
                index=branch,
                prompt_ids=(1, 2 + branch),
                output_ids=(10 + number, 5, 6),
                trainable=True,
                policy_spans=(PolicySpan(version=0),),
            )
            for branch in range(branches)
        )
        episode = nouns.episode(
            id=f"ep_{number}",
            status=EpisodeStatus.SCORED,
            group_id="grp_a",
            trainable=True,
            reward=reward,
            turn_ids=tuple(turn.id for turn in turns),
        )
        attempts.append(Attempt(episode=episode, turns=turns))
    return take_group(attempts, line=(0,), max_staleness=0)


@pytest.mark.parametrize(("rewards", "best"), [((0.2, 1.0, 1.0), [11]), ((0.2, 0.9), []), ((1.0, 1.0), []), ((), [])])
def test_the_best_attempt_is_imitated_where_it_is_good_and_not_alone(rewards, best) -> None:
    """A success beside failures; nothing where none is good enough or all are alike."""
    assert [sample.tokens[2] for sample in best_samples(group(*rewards), LearnerSection())] == best


def test_best_against_worst_is_a_preference() -> None:
    """One pair a group, none where all are alike or an attempt fell into several Branches."""
    (pair,) = best_against_worst(group(0.5, 1.0, 0.1, 0.1))
    assert (pair.chosen.tokens[2], pair.rejected.tokens[2]) == (11, 13)
    assert best_against_worst(group(0.5, 0.5)) == []
    assert best_against_worst(group()) == []
    assert best_against_worst(group(0.5, 1.0, branches=2)) == []
