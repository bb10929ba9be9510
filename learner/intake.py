"""Which attempts of an EpisodeGroup may train, and as what.

A refused attempt enters nothing, neither the loss nor the group's baseline, and is counted by cause. A
truncated attempt stays in the baseline and leaves the loss. Failed attempts are ordinary negatives.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from core.episode import Episode, EpisodeStatus, StopReason
from core.errors import LearnerError
from core.sample import TrainingSample
from core.trajectory import BreakCause
from core.turn import Turn
from learner.advantages import GroupAdvantages
from learner.samples import count_breaks, episode_samples, is_exact, training_turns


class RefusalCause(StrEnum):
    """Why an attempt may not train."""

    NOT_SCORED = "not_scored"
    """Still running, infrastructure failed, or expired."""
    NO_REWARD = "no_reward"
    NO_CONSENT = "no_consent"
    NOT_DURABLE = "not_durable"
    """A Turn that the Episode names is not in the store, or it names none."""
    NOT_EXACT = "not_exact"
    """A Turn lacks token ids or log-probs of the engine."""
    OTHER_POLICY = "other_policy"
    """A Turn was sampled by another Policy."""
    STALE = "stale"
    """A token was sampled by a PolicyVersion too far behind."""
    AHEAD = "ahead"
    """A token was sampled by a PolicyVersion that the learner does not come from."""


@dataclass(frozen=True)
class Attempt:
    """An Episode of the group with all its stored Turns."""

    episode: Episode
    turns: tuple[Turn, ...]


@dataclass(frozen=True)
class GroupIntake:
    """The attempts of a group that count, and what became of the others."""

    counted: tuple[Attempt, ...]
    """Those that were not refused: they enter the baseline. A Checkpoint's lineage."""
    rewards: tuple[float, ...]
    """Of the counted attempts, in order."""
    refused: Mapping[RefusalCause, int]
    truncated: int
    """Counted attempts that are in the baseline only."""
    breaks: Mapping[BreakCause, int]
    """Branches beyond each Episode's first, by cause."""

    @property
    def loss_tokens(self) -> tuple[int, ...]:
        """Of each counted attempt: tokens that would enter the loss."""
        return tuple(
            sum(sum(sample.loss_mask) for sample in episode_samples(attempt.episode, attempt.turns, 0.0))
            for attempt in self.counted
        )


def refusal(attempt: Attempt, *, line: Sequence[int], max_staleness: int) -> RefusalCause | None:
    """Why this attempt may not train what is at the end of ``line``; None: it may.

    ``line``: the PolicyVersions that the run comes from, oldest first, the present one last. ``max_staleness``
    counts steps on that line, for others take numbers in between: how far behind the oldest version that
    sampled a token of the attempt may be.
    """
    episode = attempt.episode
    if episode.status is not EpisodeStatus.SCORED:
        return RefusalCause.NOT_SCORED
    if episode.reward is None:
        return RefusalCause.NO_REWARD
    if not episode.trainable:
        return RefusalCause.NO_CONSENT
    return _turns_refusal(attempt) or _version_refusal(attempt, line, max_staleness)


def take_group(attempts: Sequence[Attempt], *, line: Sequence[int], max_staleness: int) -> GroupIntake:
    """Sort the attempts of one EpisodeGroup into those that count and those that are refused.

    Raises LearnerError when they are not of one group and Policy.
    """
    if len({(attempt.episode.group_id, attempt.episode.policy) for attempt in attempts}) > 1:
        raise LearnerError("the attempts belong to different groups or Policies")
    refused: Counter[RefusalCause] = Counter()
    counted: list[Attempt] = []
    rewards: list[float] = []
    breaks: Counter[BreakCause] = Counter()
    for attempt in attempts:
        cause = refusal(attempt, line=line, max_staleness=max_staleness)
        if cause is not None or attempt.episode.reward is None:
            refused[cause or RefusalCause.NO_REWARD] += 1
            continue
        counted.append(attempt)
        rewards.append(attempt.episode.reward)
        breaks += count_breaks(attempt.episode, attempt.turns)
    return GroupIntake(
        counted=tuple(counted),
        rewards=tuple(rewards),
        refused=refused,
        truncated=sum(attempt.episode.stop_reason is StopReason.TRUNCATED for attempt in counted),
        breaks=breaks,
    )


def group_samples(intake: GroupIntake, advantages: GroupAdvantages) -> tuple[TrainingSample, ...]:
    """The counted attempts as TrainingSamples, those with tokens in the loss.

    A group without variance gives none: their gradient is 0, and they would only dilute the token mean.
    """
    if advantages.zero_variance:
        return ()
    return tuple(
        sample
        for attempt, advantage in zip(intake.counted, advantages.values, strict=True)
        for sample in episode_samples(attempt.episode, attempt.turns, advantage)
        if any(sample.loss_mask)
    )


def _turns_refusal(attempt: Attempt) -> RefusalCause | None:
    named = set(attempt.episode.turn_ids)
    stored = [turn for turn in attempt.turns if turn.id in named]
    if not named or {turn.id for turn in stored} != named:
        return RefusalCause.NOT_DURABLE
    if not all(is_exact(turn) for turn in stored):
        return RefusalCause.NOT_EXACT
    if not training_turns(attempt.episode, stored):
        return RefusalCause.NO_CONSENT
    # Version 0 of every Policy is its Base, whatever name it was asked for by.
    foreign = [turn for turn in stored if turn.policy != attempt.episode.policy]
    others = {span.version for turn in foreign for span in turn.policy_spans}
    return RefusalCause.OTHER_POLICY if others - {0} else None


def _version_refusal(attempt: Attempt, line: Sequence[int], max_staleness: int) -> RefusalCause | None:
    turns = training_turns(attempt.episode, attempt.turns)
    versions = {span.version for turn in turns for span in turn.policy_spans}
    if not versions <= set(line):
        return RefusalCause.AHEAD
    behind = max((len(line) - 1 - line.index(version) for version in versions), default=0)
    return RefusalCause.STALE if behind > max_staleness else None
