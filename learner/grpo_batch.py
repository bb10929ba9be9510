"""From the groups of one step to what the optimizer sees, with the shuffled-reward control."""

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from core.config.learner import LearnerSection
from core.run import DomainMetrics
from core.sample import TrainingSample
from learner.data_state import GroupOutcome
from learner.group_metrics import domain_metrics, group_outcomes, staleness
from learner.intake import Attempt, GroupIntake, group_samples, refusal, take_group
from learner.objective import Objective


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
    """Counts by cause, lengths, staleness in versions."""
    domains: dict[str, DomainMetrics]
    outcomes: tuple[GroupOutcome, ...]
    """Of every group, for the choice of later Tasks."""


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
    intakes = [
        take_group(
            group if shuffle_seed is None else _dealt_anew(group, config, line, f"{shuffle_seed}:{index}"),
            line=line,
            max_staleness=config.max_staleness,
        )
        for index, group in enumerate(groups)
    ]
    objective = Objective(config.objective)
    advantages = objective.advantages(
        [intake.rewards for intake in intakes], [intake.loss_tokens for intake in intakes]
    )
    samples = [
        sample for intake, values in zip(intakes, advantages, strict=True) for sample in group_samples(intake, values)
    ]
    counted = [attempt.episode for intake in intakes for attempt in intake.counted]
    rewards = [reward for intake in intakes for reward in intake.rewards]
    # Dealt rewards do not touch what an attempt achieved.
    successes = [float(bool(episode.success)) for episode in counted]
    return GrpoBatch(
        samples=tuple(samples),
        episode_ids=tuple(episode.id for episode in counted),
        reward_mean=fmean(rewards) if rewards else None,
        success_rate=fmean(successes) if successes else None,
        values=_counts(intakes)
        | {
            "groups": float(len(groups)),
            "zero_variance_groups": float(sum(values.zero_variance for values in advantages)),
            "samples": float(len(samples)),
            "episodes": float(len(counted)),
        }
        | staleness(samples, line),
        domains=domain_metrics(intakes, advantages),
        outcomes=group_outcomes(intakes, advantages),
    )


def _counts(intakes: Sequence[GroupIntake]) -> dict[str, float]:
    counts: Counter[str] = Counter()
    for intake in intakes:
        counts.update({f"refused_{cause}": number for cause, number in intake.refused.items()})
        counts.update({f"break_{cause}": number for cause, number in intake.breaks.items()})
        counts["truncated"] += intake.truncated
    return {name: float(number) for name, number in counts.items()}


def _dealt_anew(group: Sequence[Attempt], config: LearnerSection, line: Sequence[int], seed: str) -> list[Attempt]:
    """The group with the rewards of the attempts that count permuted among those."""
    counts = [refusal(attempt, line=line, max_staleness=config.max_staleness) is None for attempt in group]
    counted = [attempt for attempt, counts_too in zip(group, counts, strict=True) if counts_too]
    dealt = iter(shuffle_rewards(counted, seed=seed))
    return [next(dealt) if counts_too else attempt for attempt, counts_too in zip(group, counts, strict=True)]


def shuffle_rewards(attempts: Sequence[Attempt], *, seed: str) -> list[Attempt]:
    """The same attempts with their rewards permuted among themselves."""
    rewards = [attempt.episode.reward for attempt in attempts]
    random.Random(seed).shuffle(rewards)
    return [
        Attempt(episode=attempt.episode.model_copy(update={"reward": reward}), turns=attempt.turns)
        for attempt, reward in zip(attempts, rewards, strict=True)
    ]
