"""What a GRPO step learns from beside its policy gradient."""

from types import SimpleNamespace
from typing import Any

import pytest

from core.config.learner import LearnerSection
from core.episode import EpisodeStatus
from core.policy import PolicySpan
from core.run import StepMetrics
from learner.grpo_batch import GrpoBatch
from learner.grpo_mixture import GrpoMixture, best_against_worst, best_samples
from learner.intake import Attempt, GroupIntake, take_group
from learner.mixture import Mixture
from learner.samples import episode_samples
from learner.step import UpdateMetrics
from learner.train import run_grpo
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


class Session:
    """A TrainingSession that trains nothing and keeps what it is told."""

    def __init__(self, config: LearnerSection) -> None:
        self.config = config
        self.run = SimpleNamespace(
            id="run_1", policy="p", steps=[], planned_steps=1, seed=0, domains=("d",), start_version=0
        )
        self.store, self.version, self.line = None, 0, (0,)
        self.trainer = SimpleNamespace(
            mixed_update=self.update, grpo_update=lambda policy: self.update(Mixture(policy=policy), None)
        )
        self.trained: list[Mixture] = []
        self.drafted: list[Any] = []

    @property
    def step(self) -> int:
        return len(self.run.steps)

    def update(self, mixture: Mixture, _weights: Any) -> UpdateMetrics:
        self.trained.append(mixture)
        return UpdateMetrics(loss=0.1, gradient_norm=1.0, values={"train_seconds": 1.0})

    async def in_thread(self, work: Any) -> Any:
        return work()

    async def draft_probe(self, samples: Any) -> None:
        self.drafted = list(samples)

    async def publish(self, _draft: Any, *, step: StepMetrics, **_: Any) -> None:
        self.run.steps.append(step)

    async def record_step(self, step: StepMetrics) -> None:
        self.run.steps.append(step)

    async def wait_until_served(self) -> float:
        return 0.0

    async def note(self, **_: float) -> None:
        pass

    async def finish(self) -> Any:
        return self.run


@pytest.mark.parametrize(("weight", "trains"), [(1.0, True), (0.0, False)])
async def test_a_step_without_policy_samples_still_learns_from_the_other_losses(weight, trains, monkeypatch) -> None:
    """Zero-variance groups leave no policy gradient: demonstrations, where they are weighed, train all the same."""
    shown = [
        sample
        for attempt in group(1.0, 0.5).counted
        for sample in episode_samples(attempt.episode, attempt.turns, 1.0)
    ]
    session = Session(LearnerSection.model_validate({"losses": {"sft": weight}, "sft_batch": 2}))

    class Feed:
        ahead = 0

        def __init__(self, *_: Any) -> None:
            pass

        async def open(self) -> None:
            pass

        async def next(self) -> Any:
            return SimpleNamespace(groups=(), wait_seconds=0.0)

        async def learn(self, _outcomes: Any) -> None:
            pass

    async def opened(self: GrpoMixture, _tasks: Any) -> None:
        self._demonstrations = shown

    async def no_tasks(*_: Any) -> list[Any]:
        return []

    empty = GrpoBatch(
        samples=(), episode_ids=(), reward_mean=1.0, success_rate=1.0, values={}, domains={}, outcomes=()
    )
    monkeypatch.setattr("learner.train.BatchFeed", Feed)
    monkeypatch.setattr("learner.train.build_batch", lambda *_, **__: empty)
    monkeypatch.setattr("learner.train.demonstrations", no_tasks)
    monkeypatch.setattr(GrpoMixture, "open", opened)
    await run_grpo(session, SimpleNamespace())
    assert len(session.run.steps) == 1
    assert bool(session.trained) is trains
    assert len(session.drafted) == (2 if trains else 0)
