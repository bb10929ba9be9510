"""The primary metric of a live Experiment: how two arms' rewards differ, valid at every look. Pure.

Per stage the difference of the arms' means, put together with weights that go with the stages' information, so that
a change of the candidate's share over time is never mistaken for a difference of the arms. The unit is the key: its
variance is summed over keys, whatever number of stages a key was seen in. Rewards are adjusted by CUPED first.

Sources: Waudby-Smith et al. (2024), Annals of Statistics 52, "Time-uniform central limit theory" (the sequence); Deng
et al. (2013), WSDM (CUPED); Holm (1979) where there are several targets.
"""

import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from core.arm_units import ArmUnit
from core.noun import Noun
from core.statistics.covariate import cuped
from core.statistics.sequences import BURN_IN, asymptotic_halfwidth

OVERALL = "*"
"""Name of the comparison over all Domains."""
_AT = 1_000.0


class ArmComparison(Noun):
    """Candidate minus promoted arm in one Domain."""

    domain: str
    candidate_units: int
    promoted_units: int
    """With a reward."""
    difference: float | None = None
    low: float | None = None
    high: float | None = None
    """Of the confidence sequence; None until both arms have ``BURN_IN`` units."""
    p_value: float | None = None
    """Always valid, two-sided, against no difference."""
    adjusted_p_value: float | None = None
    """Holm's, among the targets."""
    variance_kept: float | None = None
    """Share of the variance that CUPED left; 1: no covariate helped."""

    @property
    def judged(self) -> bool:
        """Whether there is an interval."""
        return self.low is not None


def compare_arms(
    units: Sequence[ArmUnit], domain: str, *, candidate: str, promoted: str, alpha: float
) -> ArmComparison:
    """The comparison in ``domain`` (``OVERALL``: whatever the Domain) at level ``alpha``, two-sided."""
    reward = _reward_of(domain)
    kept = [(unit, value) for unit in units if (value := reward(unit)) is not None]
    counts = {arm: sum(unit.arm == arm for unit, _ in kept) for arm in (candidate, promoted)}
    bare = ArmComparison(domain=domain, candidate_units=counts[candidate], promoted_units=counts[promoted])
    if min(counts.values()) < BURN_IN:
        return bare
    raw = np.asarray([value for _, value in kept], dtype=np.float64)
    values = _adjusted(raw, [unit for unit, _ in kept])
    stages = _stages([unit for unit, _ in kept], candidate, promoted)
    if not stages or min(sum(len(one) for one in side) for side in zip(*stages, strict=True)) < BURN_IN:
        return bare
    difference, variance, count = _stratified(values, stages, [unit.key for unit, _ in kept])
    half = float(asymptotic_halfwidth(count, count * variance, alpha=alpha, at=_AT))
    spread = float(raw.var())
    return bare.model_copy(
        update={
            "difference": difference,
            "low": difference - half,
            "high": difference + half,
            "p_value": always_valid_p(difference, count, count * variance, alpha=alpha),
            "variance_kept": float(values.var()) / spread if spread > 0 else 1.0,
        }
    )


def always_valid_p(difference: float, count: int, variance: float, *, alpha: float, at: float = _AT) -> float:
    """The level at which the asymptotic sequence, tuned for ``alpha``, would just exclude 0.

    Solved from the half width of ``core.statistics.sequences.asymptotic_halfwidth``: with c = n v q^2 + 1,
    p = sqrt(c) exp(-d^2 n^2 q^2 / (2 c)), at most 1.
    """
    q2 = (-2.0 * math.log(alpha) + math.log(-2.0 * math.log(alpha)) + 1.0) / at
    inner = count * variance * q2 + 1.0
    return min(1.0, math.exp(0.5 * math.log(inner) - difference**2 * count**2 * q2 / (2.0 * inner)))


def _reward_of(domain: str) -> Callable[[ArmUnit], float | None]:
    if domain == OVERALL:
        return lambda unit: unit.reward
    return lambda unit: unit.reward_in(domain)


def _adjusted(values: NDArray[np.float64], units: Sequence[ArmUnit]) -> NDArray[np.float64]:
    """By CUPED; a key of which nothing was known before stands at the mean of the others, which changes nothing."""
    known = [unit.covariate for unit in units if unit.covariate is not None]
    if len(known) < BURN_IN:
        return values
    middle = sum(known) / len(known)
    return cuped(values.tolist(), [middle if unit.covariate is None else unit.covariate for unit in units])


def _stages(
    units: Sequence[ArmUnit], candidate: str, promoted: str
) -> list[tuple[NDArray[np.intp], NDArray[np.intp]]]:
    """Per stage that has both arms: places of the candidate's units, and of the promoted arm's."""
    arms = np.asarray([unit.arm for unit in units])
    numbers = np.asarray([unit.stage for unit in units])
    found = []
    for stage in np.unique(numbers):
        here = numbers == stage
        sides = (np.flatnonzero(here & (arms == candidate)), np.flatnonzero(here & (arms == promoted)))
        # One unit has no variance that could be seen.
        if min(len(side) for side in sides) > 1:
            found.append(sides)
    return found


def _stratified(
    values: NDArray[np.float64], stages: Sequence[tuple[NDArray[np.intp], NDArray[np.intp]]], keys: Sequence[str]
) -> tuple[float, float, int]:
    """The difference, its variance with keys as clusters, and the number of units behind it."""
    sizes = np.asarray([len(one) * len(two) / (len(one) + len(two)) for one, two in stages])
    weights = sizes / sizes.sum()
    difference = 0.0
    shares: dict[str, float] = {}
    for weight, sides in zip(weights, stages, strict=True):
        for sign, side in zip((1.0, -1.0), sides, strict=True):
            middle = float(values[side].mean())
            difference += sign * weight * middle
            scale = sign * weight / math.sqrt(len(side) * (len(side) - 1))
            for place in side:
                shares[keys[place]] = shares.get(keys[place], 0.0) + scale * float(values[place] - middle)
    variance = sum(share * share for share in shares.values())
    return float(difference), variance, int(sum(len(one) + len(two) for one, two in stages))
