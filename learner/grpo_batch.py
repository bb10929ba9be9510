"""From the groups of one step to what the optimizer sees, with the shuffled-reward control."""

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from core.config.schema import LearnerSection
from core.sample import TrainingSample
from learner.intake import Attempt, group_to_samples, refusal


@dataclass(frozen=True)
class GrpoBatch:
    """The samples of one optimizer step, and what is known about their Episodes."""

    samples: tuple[TrainingSample, ...]
    """Empty when no group can teach anything: all attempts of each had the same reward, or may not train."""
    episode_ids: tuple[str, ...]
    """Every Episode that entered a baseline."""
    reward_mean: float | None
    success_rate: float | None
    values: dict[str, float]
    """Counts by cause."""


def build_batch(
    groups: Sequence[Sequence[Attempt]],
    *,
    config: LearnerSection,
    line: Sequence[int],
    shuffle_seed: str | None = None,
) -> GrpoBatch:
    """Intake of every group; ``line`` as in ``learner.intake.refusal``.

    ``shuffle_seed`` deals rewards out anew among the attempts of each group that count: the control run, which
    has the same advantages and must not learn. Reported rewards and successes are the true ones.
    """
    samples: list[TrainingSample] = []
    episode_ids: list[str] = []
    counts: Counter[str] = Counter()
    rewards: list[float] = []
    flat = 0
    for index, group in enumerate(groups):
        attempts = list(group)
        if shuffle_seed is not None:
            counts_in = [
                refusal(attempt, line=line, max_staleness=config.max_staleness) is None for attempt in attempts
            ]
            counted = [attempt for attempt, counts_too in zip(attempts, counts_in, strict=True) if counts_too]
            dealt = iter(shuffle_rewards(counted, seed=f"{shuffle_seed}:{index}"))
            attempts = [
                next(dealt) if counts_too else attempt
                for attempt, counts_too in zip(attempts, counts_in, strict=True)
            ]
        taken = group_to_samples(
            attempts,
            line=line,
            max_staleness=config.max_staleness,
            scale=config.advantage,
        )
        samples += taken.samples
        episode_ids += taken.counted_episode_ids
        rewards += taken.rewards
        flat += taken.advantages.zero_variance
        counts.update({f"refused_{cause}": number for cause, number in taken.refused.items()})
        counts.update({f"break_{cause}": number for cause, number in taken.breaks.items()})
        counts["truncated"] += taken.truncated
    seen = set(episode_ids)
    successes = [
        float(bool(attempt.episode.success)) for group in groups for attempt in group if attempt.episode.id in seen
    ]
    return GrpoBatch(
        samples=tuple(samples),
        episode_ids=tuple(episode_ids),
        reward_mean=fmean(rewards) if rewards else None,
        success_rate=fmean(successes) if successes else None,
        values={name: float(number) for name, number in counts.items()}
        | {"groups": float(len(groups)), "zero_variance_groups": float(flat), "samples": float(len(samples))},
    )


def shuffle_rewards(attempts: Sequence[Attempt], *, seed: str) -> list[Attempt]:
    """The same attempts with their rewards permuted among themselves."""
    rewards = [attempt.episode.reward for attempt in attempts]
    random.Random(seed).shuffle(rewards)
    return [
        Attempt(episode=attempt.episode.model_copy(update={"reward": reward}), turns=attempt.turns)
        for attempt, reward in zip(attempts, rewards, strict=True)
    ]
