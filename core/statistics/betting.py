"""BettingTest: a one-sided test of a mean that may be looked at at any time, kept as a few numbers."""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from core.noun import Noun
from core.statistics.sequences import STAKES, log_wealths


class BettingTest(Noun):
    """Evidence against 'the mean of numbers in [0, 1] is at most ``null``' (``above=False``: at least).

    What ``core.statistics.sequences.capital`` computes for all observations at once, kept as a state that more
    observations are added to: a few numbers, whatever their count.
    """

    null: float
    above: bool = True
    count: int = 0
    total: float = 0.0
    """Sum of the observations."""
    wealths: tuple[float, ...] = (0.0,) * len(STAKES)
    """Log wealth of each bettor."""
    peak: float = 0.0
    """The largest log of their mean wealth so far: what was proven once stays proven."""

    @property
    def mean(self) -> float | None:
        """Of the observations; None without any."""
        return self.total / self.count if self.count else None

    def rejects(self, alpha: float) -> bool:
        """Whether the null is rejected at ``alpha``, for good."""
        return self.peak >= math.log(1.0 / alpha)

    def after(self, values: ArrayLike) -> "BettingTest":
        """The test with these observations added, in their order."""
        x = np.asarray(values, dtype=np.float64)
        if not x.size:
            return self
        wealths = np.asarray(self.wealths)[:, None] + log_wealths(x, self.null, above=self.above)
        weights = np.asarray([weight for _, weight in STAKES])[:, None]
        top = wealths.max(axis=0)
        mean = top + np.log((weights * np.exp(wealths - top)).sum(axis=0))
        return self.model_copy(
            update={
                "count": self.count + int(x.size),
                "total": self.total + float(x.sum()),
                "wealths": tuple(wealths[:, -1].tolist()),
                "peak": max(self.peak, float(mean.max())),
            }
        )


def difference_test(null: float, *, above: bool = True) -> BettingTest:
    """A test of the mean of differences in [-1, 1]; feed it ``unit_interval`` of them."""
    return BettingTest(null=(null + 1.0) / 2.0, above=above)


def rejected_at(tests: Sequence[BettingTest], alpha: float) -> bool:
    """Whether every one of ``tests`` rejects its null: a claim that all hold needs no correction.

    Source: Berger (1982), Technometrics 24, 295-300 (intersection-union tests).
    """
    return all(test.rejects(alpha) for test in tests)
