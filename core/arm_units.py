"""ArmUnit: what one key did under one arm in one stage of a ramp, and how units of two arms are matched. Pure.

The key is what was assigned, so the key is what is counted: requests and Episodes of one key are no independent
observations.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from core.arm_outcome import ArmOutcome

FALLBACK = "fallback"
"""The event of a request that another arm answered than the Episode's."""


@dataclass(slots=True)
class ArmUnit:
    """One key, one arm, one stage."""

    key: str
    arm: str
    stage: int
    began_at: float
    """Of its first Episode."""
    requests: int = 0
    events: dict[str, int] = field(default_factory=dict)
    rewards: list[float] = field(default_factory=list)
    """Of its Episodes that have one."""
    domain_rewards: dict[str, list[float]] = field(default_factory=dict)
    covariate: float | None = None
    episodes: int = 0

    @property
    def reward(self) -> float | None:
        """Mean over its Episodes; None without any."""
        return sum(self.rewards) / len(self.rewards) if self.rewards else None

    def reward_in(self, domain: str) -> float | None:
        """Mean over its Episodes of a Domain; None without any."""
        found = self.domain_rewards.get(domain)
        return sum(found) / len(found) if found else None

    def share(self, event: str) -> float:
        """Of its requests with this event, in [0, 1]."""
        return min(1.0, self.events.get(event, 0) / self.requests) if self.requests else 0.0


def units_of(outcomes: Iterable[ArmOutcome]) -> list[ArmUnit]:
    """The units of outcomes, in order of time.

    Of an Episode that saw two arms only the requests count that its own arm answered or failed to answer: a candidate
    that fails must not hide behind the arm that stepped in. Its reward is neither arm's.
    """
    found: dict[tuple[str, str, int], ArmUnit] = {}
    for outcome in sorted(outcomes, key=lambda one: (one.created_at, one.episode_id)):
        requests = outcome.requests - outcome.events.get(FALLBACK, 0)
        if outcome.mixed and not requests:
            continue
        place = (outcome.key, outcome.arm, outcome.stage)
        unit = found.get(place)
        if unit is None:
            unit = found[place] = ArmUnit(outcome.key, outcome.arm, outcome.stage, outcome.created_at)
        _add(unit, outcome, requests)
    return list(found.values())


def _add(unit: ArmUnit, outcome: ArmOutcome, requests: int) -> None:
    unit.requests += requests
    for event, count in outcome.events.items():
        unit.events[event] = unit.events.get(event, 0) + count
    if outcome.covariate is not None:
        unit.covariate = outcome.covariate
    if outcome.mixed:
        return
    unit.episodes += 1
    if outcome.reward is not None:
        unit.rewards.append(outcome.reward)
        if outcome.domain is not None:
            unit.domain_rewards.setdefault(outcome.domain, []).append(outcome.reward)


def first_exposures(outcomes: Iterable[ArmOutcome]) -> dict[int, dict[str, int]]:
    """Stage → arm → keys that were first exposed there: what a sample-ratio test counts."""
    first: dict[str, ArmOutcome] = {}
    for outcome in outcomes:
        known = first.get(outcome.key)
        if known is None or (outcome.created_at, outcome.episode_id) < (known.created_at, known.episode_id):
            first[outcome.key] = outcome
    found: dict[int, dict[str, int]] = {}
    for outcome in first.values():
        arms = found.setdefault(outcome.stage, {})
        arms[outcome.arm] = arms.get(outcome.arm, 0) + 1
    return found


def block_sizes(share: float) -> tuple[int, int]:
    """How many units of the candidate, and of the promoted arm, make one block at this share of the candidate.

    Known before any unit is seen, so that a later unit never changes an earlier block: at 1% one candidate against
    99, at 50% one against one.
    """
    if share <= 0.5:
        return 1, max(1, math.floor((1.0 - share) / share + 1e-9))
    return max(1, math.floor(share / (1.0 - share) + 1e-9)), 1


def matched_differences(
    units: Sequence[ArmUnit],
    value: Callable[[ArmUnit], float | None],
    *,
    shares: Sequence[float],
    first: str,
    second: str,
) -> NDArray[np.float64]:
    """Block mean of ``second`` minus block mean of ``first``, in [-1, 1], stage by stage in order of time.

    The k-th unit of an arm never belongs to another block: with more units only new differences come. Stages without
    a second arm say nothing.
    """
    found: list[NDArray[np.float64]] = []
    for stage, share in enumerate(shares):
        if not 0.0 < share < 1.0:
            continue
        size, control = block_sizes(share)
        means = [
            _block_means(_values(units, value, stage, arm), length)
            for arm, length in ((second, size), (first, control))
        ]
        whole = min(len(one) for one in means)
        found.append(means[0][:whole] - means[1][:whole])
    return np.concatenate(found) if found else np.empty(0)


def _values(units: Iterable[ArmUnit], value: Callable[[ArmUnit], float | None], stage: int, arm: str) -> list[float]:
    seen = (value(unit) for unit in units if unit.stage == stage and unit.arm == arm)
    return [one for one in seen if one is not None]


def _block_means(values: Sequence[float], size: int) -> NDArray[np.float64]:
    whole = len(values) // size
    blocks = np.asarray(values[: whole * size], dtype=np.float64).reshape(whole, size)
    return np.asarray(blocks.mean(axis=1), dtype=np.float64)
