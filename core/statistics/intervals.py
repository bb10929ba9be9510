"""Intervals at a fixed number of observations: of paired differences, of shares, and the exact paired test."""

import math
from collections.abc import Hashable, Sequence

import numpy as np

from core.noun import Noun

_PART = 500
"""Resamples drawn at once."""


class Interval(Noun):
    """A point estimate with a confidence interval."""

    mean: float
    low: float
    high: float
    level: float = 0.95


def paired_bootstrap(
    differences: Sequence[float], *, level: float = 0.95, resamples: int = 10_000, seed: int = 0
) -> Interval:
    """Percentile bootstrap of the mean of paired differences; the unit is the Task.

    Source: Efron and Tibshirani, An Introduction to the Bootstrap (1993), chapter 13.
    Raises ValueError when there is no difference to resample.
    """
    return clustered_bootstrap(differences, range(len(differences)), level=level, resamples=resamples, seed=seed)


def clustered_bootstrap(
    values: Sequence[float],
    clusters: Sequence[Hashable],
    *,
    level: float = 0.95,
    resamples: int = 10_000,
    seed: int = 0,
) -> Interval:
    """Percentile bootstrap of the mean where values of one cluster (a prompt, a user) belong together.

    Whole clusters are resampled; the mean is over values, so that large clusters weigh more. Source: Davison and
    Hinkley, Bootstrap Methods and their Application (1997), section 3.8. Raises ValueError without a value.
    """
    if not len(values):
        raise ValueError("a bootstrap needs at least one difference")
    numbers: dict[Hashable, int] = {}
    place = np.asarray([numbers.setdefault(cluster, len(numbers)) for cluster in clusters])
    data = np.asarray(values, dtype=np.float64)
    sums = np.bincount(place, weights=data)
    counts = np.bincount(place)
    generator = np.random.default_rng(seed)
    means = np.empty(resamples)
    # In parts: all picks at once would be resamples x clusters numbers.
    for start in range(0, resamples, _PART):
        part = slice(start, min(start + _PART, resamples))
        picks = generator.integers(0, len(sums), size=(part.stop - start, len(sums)), dtype=np.int32)
        means[part] = sums[picks].sum(axis=1) / counts[picks].sum(axis=1)
    tail = (1.0 - level) / 2.0
    low, high = np.quantile(means, [tail, 1.0 - tail])
    return Interval(mean=float(data.mean()), low=float(low), high=float(high), level=level)


def wilson_interval(successes: int, trials: int, *, z: float = 1.959964) -> Interval:
    """Wilson score interval of a share (default 95%). Source: Wilson (1927), JASA 22, 209-212."""
    if trials <= 0:
        raise ValueError("a share needs at least one trial")
    share = successes / trials
    denominator = 1.0 + z * z / trials
    centre = (share + z * z / (2 * trials)) / denominator
    half = z * np.sqrt(share * (1 - share) / trials + z * z / (4 * trials * trials)) / denominator
    return Interval(mean=share, low=max(0.0, float(centre - half)), high=min(1.0, float(centre + half)))


def mcnemar_exact(only_first: int, only_second: int) -> float:
    """Two-sided p-value of 'both sides succeed equally often', from the pairs in which one side alone did.

    Under the null the smaller count is binomial with share 1/2. Source: McNemar (1947), Psychometrika 12, 153-157,
    in its exact form. Without a discordant pair the p-value is 1.
    """
    discordant = only_first + only_second
    if discordant == 0:
        return 1.0
    tail = sum(math.comb(discordant, count) for count in range(min(only_first, only_second) + 1))
    return min(1.0, 2 * tail / (1 << discordant))
