"""Group-relative advantages: how much better an attempt went than the others at the same Task.

A missing reward (None: the attempt says nothing about the policy) stays out of the baseline and gets
advantage 0. The caller must also keep that attempt out of the loss.

Sources: verl ``core_algos.py`` (GRPO, RLOO), TRL ``grpo_trainer.py`` (missing rewards, eps 1e-4), Dr.GRPO
(arXiv 2503.20783: no division by the standard deviation).
"""

import math
import statistics
from collections.abc import Callable, Sequence
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
