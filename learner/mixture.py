"""Mixture: what one optimizer step learns from, sorted by loss. No torch here."""

from collections.abc import Sequence
from dataclasses import dataclass

from core.config.learner import LearnerSection
from core.config.learner_live import LossWeightsSection
from core.sample import TrainingSample


@dataclass(frozen=True)
class PreferencePair:
    """Two answers to one prompt; the loss masks say what of each is the answer."""

    chosen: TrainingSample
    rejected: TrainingSample


@dataclass(frozen=True)
class Mixture:
    """Samples by the loss that they enter; one sample may stand in several."""

    policy: tuple[TrainingSample, ...] = ()
    """With advantages."""
    demonstrations: tuple[TrainingSample, ...] = ()
    pairs: tuple[PreferencePair, ...] = ()
    best: tuple[TrainingSample, ...] = ()
    """The policy's own best attempts."""

    @property
    def samples(self) -> tuple[TrainingSample, ...]:
        """All of them."""
        return (*self.policy, *self.demonstrations, *self.best, *paired_samples(self.pairs))

    @property
    def teaches(self) -> bool:
        """Whether there is a token to learn from."""
        return any(any(sample.loss_mask) for sample in self.samples)

    def weighed(self, weights: LossWeightsSection) -> "Mixture":
        """Only what a loss with a weight above 0 uses."""
        return Mixture(
            policy=self.policy if weights.policy else (),
            demonstrations=self.demonstrations if weights.sft else (),
            pairs=self.pairs if weights.dpo else (),
            best=self.best if weights.rejection else (),
        )


def uses_reference(config: LearnerSection) -> bool:
    """Whether a loss asks the Base."""
    return config.objective.kl_weight > 0 or config.losses.dpo > 0


def paired_samples(pairs: Sequence[PreferencePair]) -> list[TrainingSample]:
    """Chosen and rejected of one pair after the other, each pair a group, so that its prompt is computed once."""
    flat = []
    for number, pair in enumerate(pairs):
        for sample in (pair.chosen, pair.rejected):
            flat.append(sample.model_copy(update={"group_id": f"pair_{number}"}))
    return flat


def best_attempts(rewards: Sequence[float], *, at_least: float, most: int = 1) -> tuple[int, ...]:
    """Rejection sampling: indices of the ``most`` best rewards of a group, none below ``at_least``.

    Among equals the earlier one. Nothing where all rewards are alike: then none is better than another.
    Source: RAFT (arXiv 2304.06767).
    """
    if len(rewards) > 1 and max(rewards) == min(rewards):
        return ()
    order = sorted(range(len(rewards)), key=lambda index: (-rewards[index], index))
    return tuple(sorted(index for index in order[:most] if rewards[index] >= at_least))
