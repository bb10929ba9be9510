"""What a GRPO step learns from beside its policy gradient: demonstrations, best attempts, best against worst."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from core.config.learner import LearnerSection
from core.sample import TrainingSample
from core.task import Task
from learner.intake import Attempt, GroupIntake, take_group
from learner.mixture import Mixture, PreferencePair, best_attempts
from learner.samples import episode_samples
from learner.session import TrainingSession
from learner.sft_data import demonstration_samples, load_tokenizer
from learner.step import UpdateMetrics
from learner.task_order import order_of_pass


class GrpoMixture:
    """The other losses of one GRPO run, by ``learner.losses``."""

    def __init__(self, session: TrainingSession) -> None:
        self._session = session
        self._weights = session.config.losses
        self._demonstrations: list[TrainingSample] = []

    @property
    def plain(self) -> bool:
        """Nothing but the policy gradient: the step needs no Mixture."""
        weights = self._weights
        return weights.policy == 1.0 and not (weights.sft or weights.dpo or weights.rejection)

    @property
    def imitates(self) -> bool:
        """Demonstrations are needed."""
        return self._weights.sft > 0

    async def open(self, tasks: Sequence[Task]) -> None:
        """Tokenise the demonstrations of ``tasks``, where they are needed."""
        if not self.imitates:
            return
        tokenizer = await self._session.in_thread(partial(load_tokenizer, Path(self._session.base.path)))
        self._demonstrations = demonstration_samples(tasks, tokenizer)

    async def update(self, mixture: Mixture) -> UpdateMetrics:
        """One step on the training thread. Raises LearnerError or Diverged as the Trainer does."""
        trainer = self._session.trainer
        if self.plain:
            return await self._session.in_thread(partial(trainer.grpo_update, mixture.policy))
        return await self._session.in_thread(partial(trainer.mixed_update, mixture, self._weights))

    def of_step(self, policy: tuple[TrainingSample, ...], groups: Sequence[Sequence[Attempt]]) -> Mixture:
        """The Mixture of the session's present step; the same again for a resumed run."""
        if self.plain:
            return Mixture(policy=policy)
        session = self._session
        intakes = [
            take_group(group, line=session.line, max_staleness=session.config.max_staleness) for group in groups
        ]
        return Mixture(
            policy=policy,
            demonstrations=tuple(self._shown(session.step, session.run.seed)),
            pairs=tuple(pair for intake in intakes for pair in best_against_worst(intake)),
            best=tuple(sample for intake in intakes for sample in best_samples(intake, session.config)),
        ).weighed(self._weights)

    def _shown(self, step: int, seed: int) -> list[TrainingSample]:
        """``sft_batch`` demonstrations, in a new order in each pass over them."""
        count, size = len(self._demonstrations), self._session.config.sft_batch
        if not count:
            return []
        places = range(step * size, (step + 1) * size)
        orders = {place // count: order_of_pass(count, seed=seed, epoch=place // count) for place in places}
        return [self._demonstrations[orders[place // count][place % count]] for place in places]


def best_samples(intake: GroupIntake, config: LearnerSection) -> list[TrainingSample]:
    """The group's best attempt, where it is good enough and better than another."""
    return [
        sample
        for index in best_attempts(intake.rewards, at_least=config.losses.rejection_above)
        for sample in episode_samples(intake.counted[index].episode, intake.counted[index].turns, 1.0)
        if any(sample.loss_mask)
    ]


def best_against_worst(intake: GroupIntake) -> list[PreferencePair]:
    """The group's best and worst attempt as a preference, where each is one Branch and they differ."""
    if not intake.rewards or max(intake.rewards) == min(intake.rewards):
        return []
    order = sorted(range(len(intake.rewards)), key=lambda index: (-intake.rewards[index], index))
    ends = [intake.counted[index] for index in (order[0], order[-1])]
    samples = [episode_samples(attempt.episode, attempt.turns, 1.0) for attempt in ends]
    if any(len(found) != 1 or not any(found[0].loss_mask) for found in samples):
        return []
    return [PreferencePair(chosen=samples[0][0], rejected=samples[1][0])]
