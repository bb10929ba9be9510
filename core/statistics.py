"""Statistics as pure functions: intervals of paired differences and of shares."""

from collections.abc import Sequence

import numpy as np

from core.noun import Noun


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
    if not differences:
        raise ValueError("a bootstrap needs at least one difference")
    values = np.asarray(differences, dtype=np.float64)
    generator = np.random.default_rng(seed)
    picks = generator.integers(0, len(values), size=(resamples, len(values)), dtype=np.int32)
    means = values[picks].mean(axis=1)
    tail = (1.0 - level) / 2.0
    low, high = np.quantile(means, [tail, 1.0 - tail])
    return Interval(mean=float(values.mean()), low=float(low), high=float(high), level=level)


def wilson_interval(successes: int, trials: int, *, z: float = 1.959964) -> Interval:
    """Wilson score interval of a share (default 95%). Source: Wilson (1927), JASA 22, 209-212."""
    if trials <= 0:
        raise ValueError("a share needs at least one trial")
    share = successes / trials
    denominator = 1.0 + z * z / trials
    centre = (share + z * z / (2 * trials)) / denominator
    half = z * np.sqrt(share * (1 - share) / trials + z * z / (4 * trials * trials)) / denominator
    return Interval(mean=share, low=max(0.0, float(centre - half)), high=min(1.0, float(centre + half)))
