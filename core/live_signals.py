"""What clients and judges said about an Episode, as rewards, preferences and demonstrations. Pure.

Only Feedback that its sender lets train counts, and of each name on each subject only the latest.
"""

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from core.config.learner_live import FeedbackRewardSection, LiveSection
from core.episode import Episode
from core.feedback import Feedback, FeedbackKind, FeedbackValue, latest
from core.message import Message
from core.turn import Turn

_ANSWER = 0
"""Choice of a request that asked for one answer, and the first of several."""


@dataclass(frozen=True)
class Said:
    """An Episode and all that is known about how good it was."""

    episode: Episode
    feedback: tuple[Feedback, ...]
    """The latest of each subject and name, in order of time."""
    judged: float | None
    """The reward that the Episode was closed with, or that a judge gave, perhaps late."""

    @property
    def digest(self) -> str:
        """The same as long as nothing else is said."""
        statements = sorted(
            (one.subject, one.name, one.kind.value, json.dumps(one.value, sort_keys=True)) for one in self.feedback
        )
        return _digest([statements, self.judged])

    @property
    def newest(self) -> float:
        """When the last of it was said; 0: nothing was."""
        return max((one.created_at for one in self.feedback), default=0.0)


@dataclass(frozen=True)
class LiveSignal:
    """What an Episode can teach. Keys are ids of Turns."""

    rewards: Mapping[str, float]
    """From 0 to 1, of Turns that something was said about themselves."""
    whole: float | None
    """Of all other Turns together."""
    preferences: tuple[tuple[str, str], ...]
    """Better and worse answer to one request."""
    demonstrations: Mapping[str, Message]
    """The answer as it should have been."""


def said_about(episode: Episode, feedback: Sequence[Feedback], *, judged: float | None, config: LiveSection) -> Said:
    """What may be used of ``feedback``: said by the Episode's own Tenant, for training, of a name that counts."""
    names = {*config.rewards, config.preferred, config.preferred_over}
    mine = [one for one in feedback if one.tenant_id == episode.tenant_id and one.training_granted]
    counted = [one for one in latest(mine).values() if one.name in names or one.kind is FeedbackKind.DEMONSTRATION]
    counted.sort(key=lambda one: (one.created_at, one.id))
    used = judged if config.closing_weight > 0 else None
    return Said(episode=episode, feedback=tuple(counted), judged=used)


def read_signal(said: Said, turns: Sequence[Turn], config: LiveSection) -> LiveSignal:
    """Rewards, preferences and demonstrations about ``turns``."""
    by_subject: dict[str, list[Feedback]] = {}
    for one in said.feedback:
        by_subject.setdefault(one.subject, []).append(one)
    rewards = {}
    for turn in turns:
        value = _reward(by_subject.get(turn.id, ()), None, config)
        if value is not None:
            rewards[turn.id] = value
    return LiveSignal(
        rewards=rewards,
        whole=_reward(by_subject.get(said.episode.id, ()), said.judged, config),
        preferences=_preferences(said, turns, rewards, config),
        demonstrations=_demonstrations(said, turns),
    )


def lessons_of(said: Said, signal: LiveSignal, turns: Sequence[Turn], config: LiveSection) -> dict[str, str]:
    """Each single thing that ``signal`` teaches → a digest of it: what stays the same is not to be learned twice."""
    found: dict[str, object] = dict(signal.rewards)
    if signal.whole is not None and any(turn.id not in signal.rewards for turn in turns):
        found[said.episode.id] = signal.whole
    found |= {preference_lesson(better, worse): True for better, worse in signal.preferences}
    for turn_id, message in signal.demonstrations.items():
        found[demonstration_lesson(turn_id)] = message
        reward = signal.rewards.get(turn_id, signal.whole)
        if reward is not None and reward < config.rejected_below:
            found[correction_lesson(turn_id)] = message
    return {lesson: _digest([lesson, value]) for lesson, value in found.items()}


def preference_lesson(better: str, worse: str) -> str:
    """Of two Turns' ids."""
    return f"{better}>{worse}"


def demonstration_lesson(turn_id: str) -> str:
    """That a Turn's answer should have been another one."""
    return f"{turn_id}:demonstration"


def correction_lesson(turn_id: str) -> str:
    """That the demonstration is better than the answer that was given."""
    return f"{turn_id}:correction"


def reward_of(value: FeedbackValue, worth: FeedbackRewardSection) -> float | None:
    """A value of Feedback as a reward from 0 to 1; None for what is no number."""
    if not isinstance(value, bool | int | float):
        return None
    share = (float(value) - worth.low) / (worth.high - worth.low)
    return min(max(share, 0.0), 1.0)


def _reward(feedback: Sequence[Feedback], judged: float | None, config: LiveSection) -> float | None:
    """The weighted mean of all that was said; None: nothing was."""
    found: list[tuple[float, float]] = []
    for one in feedback:
        worth = config.rewards.get(one.name)
        value = None if worth is None else reward_of(one.value, worth)
        if worth is not None and value is not None:
            found.append((worth.weight, value))
    if judged is not None and math.isfinite(judged):
        found.append((config.closing_weight, judged))
    total = math.fsum(weight for weight, _ in found)
    return math.fsum(weight * value for weight, value in found) / total if total > 0 else None


def _preferences(
    said: Said, turns: Sequence[Turn], rewards: Mapping[str, float], config: LiveSection
) -> tuple[tuple[str, str], ...]:
    pairs: dict[tuple[str, str], None] = {}
    known = {turn.id: turn for turn in turns}
    for one in said.feedback:
        turn = known.get(one.turn_id or "")
        if turn is None:
            continue
        siblings = [other for other in turns if other.id != turn.id and _same_request(turn, other)]
        if one.name == config.preferred and one.value is True:
            pairs |= dict.fromkeys((turn.id, other.id) for other in siblings)
        if one.name == config.preferred_over:
            pairs |= dict.fromkeys((turn.id, other.id) for other in siblings if other.id == one.value)
    rated = [turn for turn in turns if turn.id in rewards]
    for better in rated:
        for worse in rated:
            far = rewards[better.id] - rewards[worse.id] >= config.pair_margin
            if far and _same_request(better, worse):
                pairs[better.id, worse.id] = None
    # What was said both ways round says nothing.
    return tuple(pair for pair in pairs if pair[::-1] not in pairs)


def _digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:32]


def _same_request(one: Turn, other: Turn) -> bool:
    return bool(one.prompt_ids) and one.prompt_ids == other.prompt_ids


def _demonstrations(said: Said, turns: Sequence[Turn]) -> dict[str, Message]:
    """One said about the whole Episode is about its last answer."""
    known = {turn.id for turn in turns}
    last = max(turns, key=lambda turn: (turn.index, turn.choice == _ANSWER), default=None)
    found: dict[str, Message] = {}
    for one in said.feedback:
        if one.kind is not FeedbackKind.DEMONSTRATION or not isinstance(one.value, dict):
            continue
        subject = one.turn_id or (last.id if last is not None else "")
        if subject in known:
            found[subject] = one.value
    return found
