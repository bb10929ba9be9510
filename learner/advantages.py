"""Group-relative advantages: how much better an attempt went than the others at the same Task.

A missing reward (None: the attempt says nothing about the policy) stays out of the baseline and gets
advantage 0. The caller must also keep that attempt out of the loss.

Sources: verl ``core_algos.py`` (GRPO, RLOO, REINFORCE++ baseline), TRL ``grpo_trainer.py`` (missing rewards,
eps 1e-4, batch scale, per-reward normalisation), Dr.GRPO (arXiv 2503.20783: no division by the standard deviation),
GDPO (arXiv 2601.05242), GiGPO (arXiv 2505.10978), DAPO's length penalty (arXiv 2503.14476).
"""

import math
import statistics
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from core.errors import LearnerError

EPS_VERL = 1e-6
EPS_TRL = 1e-4
_SAME = 1e-8
"""Rewards nearer together than this are equal but for rounding."""

Scale = Literal["group_std", "none"]


@dataclass(frozen=True)
class GroupAdvantages:
    """One advantage per attempt, in the order of the rewards."""

    values: tuple[float, ...]
    zero_variance: bool
    """Nothing to learn from this group: fewer than two counted rewards, or all of them equal."""
    counted: int
    """How many rewards entered the baseline."""


def group_advantages(
    rewards: Sequence[float | None], *, scale: Scale = "group_std", eps: float = EPS_VERL
) -> GroupAdvantages:
    """(reward - group mean), over (sample standard deviation + ``eps``) when ``scale`` is ``group_std``.

    ``group_std`` is GRPO (``eps`` 1e-6 as in verl, 1e-4 as in TRL); ``none`` is Dr.GRPO. A single counted
    reward gets advantage 0, since there is nothing to compare it with. Raises LearnerError for a reward
    that is not finite.
    """

    def centre(counted: Sequence[float]) -> list[float]:
        mean = statistics.fmean(counted)
        divisor = statistics.stdev(counted) + eps if scale == "group_std" else 1.0
        return [(reward - mean) / divisor for reward in counted]

    return _over_counted(rewards, centre)


def leave_one_out_advantages(rewards: Sequence[float | None]) -> GroupAdvantages:
    """RLOO: reward minus the mean of the others' rewards. Raises LearnerError for a non-finite reward."""

    def centre(counted: Sequence[float]) -> list[float]:
        total, others = math.fsum(counted), len(counted) - 1
        return [reward - (total - reward) / others for reward in counted]

    return _over_counted(rewards, centre)


def batch_advantages(groups: Sequence[Sequence[float | None]], *, eps: float = EPS_TRL) -> list[GroupAdvantages]:
    """(reward - its group's mean) / (sample standard deviation of all counted rewards + ``eps``).

    One scale for the batch, so that easy and hard Tasks are not blown up alike (ScaleRL; TRL's ``batch``).
    """
    centred = [group_advantages(group, scale="none") for group in groups]
    counted = [reward for group in groups for reward in group if reward is not None]
    divisor = (statistics.stdev(counted) if len(counted) > 1 else 0.0) + eps
    return [
        GroupAdvantages(
            values=tuple(value / divisor for value in group.values),
            zero_variance=group.zero_variance,
            counted=group.counted,
        )
        for group in centred
    ]


def whitened_by_tokens(
    groups: Sequence[GroupAdvantages], tokens: Sequence[Sequence[int]], *, eps: float = 1e-8
) -> list[tuple[float, ...]]:
    """REINFORCE++ baseline: centred rewards (``scale="none"``), whitened over the batch's tokens.

    ``tokens``: loss tokens of every attempt, which all carry its value. Mean and unbiased variance are over
    tokens; the divisor is sqrt(variance + ``eps``).
    """
    pairs = [
        (value, count)
        for group, counts in zip(groups, tokens, strict=True)
        for value, count in zip(group.values, counts, strict=True)
    ]
    total = sum(count for _, count in pairs)
    if total < 2:
        return [(0.0,) * len(group.values) for group in groups]
    mean = math.fsum(value * count for value, count in pairs) / total
    variance = math.fsum(count * (value - mean) ** 2 for value, count in pairs) / (total - 1)
    divisor = math.sqrt(variance + eps)
    return [tuple((value - mean) / divisor for value in group.values) for group in groups]


def per_reward_advantages(
    rewards: Mapping[str, Sequence[float | None]],
    weights: Mapping[str, float],
    *,
    scale: Scale = "group_std",
    eps: float = EPS_VERL,
) -> GroupAdvantages:
    """Each kind of reward normalised by itself within the group, then their weighted sum (GDPO).

    Otherwise the kind with the widest range decides alone. An attempt counts when any of its rewards does.
    """
    parts = {name: group_advantages(values, scale=scale, eps=eps) for name, values in rewards.items()}
    length = max((len(values) for values in rewards.values()), default=0)
    values = tuple(
        math.fsum(weights.get(name, 1.0) * part.values[index] for name, part in parts.items())
        for index in range(length)
    )
    counted = sum(any(column[index] is not None for column in rewards.values()) for index in range(length))
    return GroupAdvantages(
        values=values, zero_variance=all(part.zero_variance for part in parts.values()), counted=counted
    )


def step_advantages(
    states: Sequence[Sequence[Hashable]],
    returns: Sequence[Sequence[float]],
    *,
    scale: Scale = "none",
    eps: float = EPS_VERL,
) -> list[tuple[float, ...]]:
    """GiGPO's second level: how much better a step went than the group's other steps from the same state.

    ``states[i][k]`` is what attempt i saw before its step k, ``returns[i][k]`` what came of it. States that
    occur once teach nothing here and get 0. Add the result to the attempt's own advantage.
    """
    places: dict[Hashable, list[tuple[int, int]]] = {}
    for attempt, seen in enumerate(states):
        for step, state in enumerate(seen):
            places.setdefault(state, []).append((attempt, step))
    values = [[0.0] * len(seen) for seen in states]
    for visits in places.values():
        group = group_advantages([returns[attempt][step] for attempt, step in visits], scale=scale, eps=eps)
        for (attempt, step), value in zip(visits, group.values, strict=True):
            values[attempt][step] = value
    return [tuple(row) for row in values]


@dataclass(frozen=True)
class RunningBaseline:
    """A moving average of rewards, for Episodes that have no group: each stands against what went before it."""

    mean: float = 0.0
    count: int = 0
    decay: float = 0.95

    def taken(self, reward: float) -> "tuple[float, RunningBaseline]":
        """The advantage of ``reward`` over the average before it (0 for the first), and the new average."""
        if not math.isfinite(reward):
            raise LearnerError(f"a reward is not finite: {reward}")
        if self.count == 0:
            return 0.0, RunningBaseline(mean=reward, count=1, decay=self.decay)
        # While few rewards are known the plain mean is the better estimate.
        share = max(1.0 - self.decay, 1.0 / (self.count + 1))
        mean = self.mean + share * (reward - self.mean)
        return reward - self.mean, RunningBaseline(mean=mean, count=self.count + 1, decay=self.decay)


def overlong_penalty(tokens: int, *, longest: int, buffer: int, factor: float = 1.0) -> float:
    """Added to the reward of an answer of ``tokens``: 0 until ``longest - buffer``, then falling to ``-factor``."""
    over = tokens - (longest - buffer)
    return -min(max(over / buffer, 0.0), 1.0) * factor


def _over_counted(
    rewards: Sequence[float | None], centre: Callable[[Sequence[float]], list[float]]
) -> GroupAdvantages:
    counted = [reward for reward in rewards if reward is not None]
    if not all(math.isfinite(reward) for reward in counted):
        raise LearnerError(f"a group has a reward that is not finite: {counted}")
    if len(counted) < 2 or max(counted) - min(counted) <= _SAME:
        return GroupAdvantages(values=(0.0,) * len(rewards), zero_variance=True, counted=len(counted))
    advantages = iter(centre(counted))
    values = tuple(0.0 if reward is None else next(advantages) for reward in rewards)
    return GroupAdvantages(values=values, zero_variance=False, counted=len(counted))
