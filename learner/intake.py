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
from learner.advantages import EPS_VERL, GroupAdvantages, Scale, group_advantages
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
    """What a group gives to an optimizer step."""

    samples: tuple[TrainingSample, ...]
    """Only those with tokens in the loss; empty for a zero-variance group unless asked for."""
    advantages: GroupAdvantages
    """Of the attempts that were not refused, in order."""
    counted_episode_ids: tuple[str, ...]
    """The Episodes that the step saw: those in the baseline. A Checkpoint's lineage."""
    rewards: tuple[float, ...]
    """Of the counted Episodes, in order."""
    refused: Mapping[RefusalCause, int]
    truncated: int
    """Counted attempts that are in the baseline only."""
    breaks: Mapping[BreakCause, int]
    """Branches beyond each Episode's first, by cause."""


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


def group_to_samples(
    attempts: Sequence[Attempt],
    *,
    line: Sequence[int],
    max_staleness: int,
    scale: Scale = "group_std",
    eps: float = EPS_VERL,
    keep_zero_variance: bool = False,
) -> GroupIntake:
    """The attempts of one EpisodeGroup as TrainingSamples with group-relative advantages.

    A group without variance gives no samples by default: their gradient is 0, and they would only dilute the
    token mean. Raises LearnerError when the attempts are not of one group and Policy, or a reward is not
    finite.
    """
    if len({(attempt.episode.group_id, attempt.episode.policy) for attempt in attempts}) > 1:
        raise LearnerError("the attempts belong to different groups or Policies")
    refused: Counter[RefusalCause] = Counter()
    counted: list[Attempt] = []
    rewards: list[float] = []
    for attempt in attempts:
        cause = refusal(attempt, line=line, max_staleness=max_staleness)
        if cause is not None or attempt.episode.reward is None:
            refused[cause or RefusalCause.NO_REWARD] += 1
            continue
        counted.append(attempt)
        rewards.append(attempt.episode.reward)
    advantages = group_advantages(rewards, scale=scale, eps=eps)
    breaks: Counter[BreakCause] = Counter()
    samples: list[TrainingSample] = []
    for attempt, advantage in zip(counted, advantages.values, strict=True):
        breaks += count_breaks(attempt.episode, attempt.turns)
        if keep_zero_variance or not advantages.zero_variance:
            samples += episode_samples(attempt.episode, attempt.turns, advantage)
    return GroupIntake(
        samples=tuple(sample for sample in samples if any(sample.loss_mask)),
        advantages=advantages,
        counted_episode_ids=tuple(attempt.episode.id for attempt in counted),
        rewards=tuple(rewards),
        refused=refused,
        truncated=sum(attempt.episode.stop_reason is StopReason.TRUNCATED for attempt in counted),
        breaks=breaks,
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
