"""Confidence sequences and e-processes: valid at every look, however often one looks and whenever one stops.

Arrays run over observations in order of time along the last axis; index t of a result speaks about the first t + 1
observations. Observations are bounded in [0, 1] where a function says so; ``unit_interval`` brings a difference of
two such numbers there.

Sources: Waudby-Smith and Ramdas (2023), JRSS B 86, "Estimating means of bounded random variables by betting":
predictable plug-in empirical-Bernstein sequence (theorem 2), betting on a grid (section 5). Waudby-Smith et al.
(2024), Annals of Statistics 52, "Time-uniform central limit theory": asymptotic sequence. Ville (1939): a
non-negative martingale that starts at 1 ever reaches 1 / alpha with probability at most alpha.
"""

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]

BURN_IN = 200
"""Observations before an asymptotic sequence is to be trusted."""
_HALF = 0.5
STAKES = ((0.0125, 0.1), (0.025, 0.15), (0.05, 0.25), (0.1, 0.25), (0.2, 0.15), (0.4, 0.1))
"""Shares of the wealth that are staked, and their weights: the middle ones suit gains of 2 to 20 points."""


def unit_interval(differences: ArrayLike, *, bound: float = 1.0) -> Floats:
    """Numbers in [-bound, bound] → [0, 1]; 0 becomes 1/2."""
    return (np.asarray(differences, dtype=np.float64) / bound + 1.0) / 2.0


def capital(values: ArrayLike, null: float, *, above: bool = True) -> Floats:
    """Wealth of bettors against 'the mean of ``values`` (in [0, 1]) is at most ``null``'; log scale.

    ``above=False``: against 'at least ``null``'. The null is rejected, once and for all, when the wealth reaches
    log(1 / alpha): by Ville's inequality that happens with probability at most alpha if the null is true. It is
    a test, too, of every smaller (larger) mean.

    log sum_k w_k prod_i (1 + f_k (x_i / null - 1)): each bettor always stakes the same share f_k of its wealth,
    one of a grid from timid to bold, and the wealth is the weighted mean of theirs (the paper's GKelly). Whatever
    the effect, one of them bets nearly as well as who knew it, and sharing costs the log of its weight.
    """
    wealth = np.logaddexp.reduce(
        [
            math.log(weight) + np.cumsum(growth, axis=-1)
            for (_, weight), growth in zip(STAKES, _growths(values, null, above=above), strict=True)
        ],
        axis=0,
    )
    return np.asarray(wealth, dtype=np.float64)


def log_wealths(values: ArrayLike, null: float, *, above: bool = True) -> Floats:
    """What ``capital`` adds up, bettor by bettor: log wealth of each, over all observations of one row."""
    return np.cumsum(np.stack(_growths(values, null, above=above)), axis=-1)


def rejected(log_wealth: Floats, *, alpha: float) -> NDArray[np.bool_]:
    """Where the null of ``capital`` is rejected by then: wealth has reached 1 / alpha at this or an earlier look."""
    return np.maximum.accumulate(log_wealth, axis=-1) >= math.log(1.0 / alpha)


def betting_bounds(values: ArrayLike, *, alpha: float, resolution: int = 1_000) -> tuple[float, float]:
    """The interval after all ``values`` (one row, in [0, 1]) of a confidence sequence for their mean.

    All means that were never rejected, each side at alpha / 2, on a grid of ``resolution`` steps, outward.
    """
    x = np.asarray(values, dtype=np.float64)
    grid = np.arange(1, resolution) / resolution
    limit = math.log(2.0 / alpha)
    low, high = 0, len(grid) - 1
    while low <= high:
        middle = (low + high) // 2
        if capital(x, float(grid[middle])).max(initial=0.0) >= limit:
            low = middle + 1
        else:
            high = middle - 1
    lower = float(grid[low - 1]) if low > 0 else 0.0
    low, high = 0, len(grid) - 1
    while low <= high:
        middle = (low + high) // 2
        if capital(x, float(grid[middle]), above=False).max(initial=0.0) >= limit:
            high = middle - 1
        else:
            low = middle + 1
    upper = float(grid[high + 1]) if high < len(grid) - 1 else 1.0
    return lower, upper


def bernstein_sequence(values: ArrayLike, *, alpha: float) -> tuple[Floats, Floats]:
    """Lower and upper bounds of the mean of ``values`` (in [0, 1]) at every look, together wrong at most ``alpha``.

    (sum lambda_i x_i +- (log(2 / alpha) + sum 4 (x_i - mean_{i-1})^2 psi(lambda_i))) / sum lambda_i, with
    psi(lambda) = (-log(1 - lambda) - lambda) / 4; bounds of earlier looks stay in force.
    """
    x = np.asarray(values, dtype=np.float64)
    means, bets = _bets(x, alpha)
    psi = (-np.log1p(-bets) - bets) / 4.0
    weight = np.cumsum(bets, axis=-1)
    centre = np.cumsum(bets * x, axis=-1) / weight
    half = (math.log(2.0 / alpha) + np.cumsum(4.0 * (x - means) ** 2 * psi, axis=-1)) / weight
    lower = np.maximum.accumulate(np.maximum(centre - half, 0.0), axis=-1)
    upper = np.minimum.accumulate(np.minimum(centre + half, 1.0), axis=-1)
    return lower, upper


def asymptotic_halfwidth(count: ArrayLike, variance: ArrayLike, *, alpha: float, at: float = 1_000.0) -> Floats:
    """Half the width of an asymptotic confidence sequence for a mean, after ``count`` observations.

    sqrt((n v q^2 + 1) / (n^2 q^2) * log((n v q^2 + 1) / alpha^2)), narrowest around ``at`` unit-variance
    observations, with q^2 = (-2 log alpha + log(-2 log alpha) + 1) / at. Needs no bounds on the observations, and
    holds in the limit: do not look before ``BURN_IN``.
    """
    n, v = np.asarray(count, dtype=np.float64), np.asarray(variance, dtype=np.float64)
    q2 = (-2.0 * math.log(alpha) + math.log(-2.0 * math.log(alpha)) + 1.0) / at
    inner = n * v * q2 + 1.0
    return np.sqrt(inner / (n * n * q2) * np.log(inner / alpha**2))


def difference_sequence(
    first: tuple[int, float, float], second: tuple[int, float, float], *, alpha: float, at: float = 1_000.0
) -> tuple[float, float]:
    """Bounds of mean(second) - mean(first), each given as (count, mean, variance): two independent arms.

    The asymptotic sequence with n = both counts and v = n (v1 / n1 + v2 / n2), the variance of the estimate times
    n. Raises ValueError before each arm has ``BURN_IN`` observations.
    """
    (n1, mean1, variance1), (n2, mean2, variance2) = first, second
    if min(n1, n2) < BURN_IN:
        raise ValueError(f"an asymptotic sequence needs {BURN_IN} observations in each arm, not {min(n1, n2)}")
    n = n1 + n2
    half = float(asymptotic_halfwidth(n, n * (variance1 / n1 + variance2 / n2), alpha=alpha, at=at))
    return mean2 - mean1 - half, mean2 - mean1 + half


def _growths(values: ArrayLike, null: float, *, above: bool) -> list[Floats]:
    x = np.asarray(values, dtype=np.float64)
    if not 0.0 < null < 1.0:
        raise ValueError(f"the null mean {null} is not inside (0, 1)")
    if not above:
        x, null = 1.0 - x, 1.0 - null
    return [np.log1p(stake * (x / null - 1.0)) for stake, _ in STAKES]


def _bets(x: Floats, alpha: float) -> tuple[Floats, Floats]:
    """Mean before each observation, and the bet on it: both know only what came before."""
    t = np.arange(1, x.shape[-1] + 1, dtype=np.float64)
    means = (_HALF + np.cumsum(x, axis=-1)) / (t + 1.0)
    before = np.concatenate([np.full((*x.shape[:-1], 1), _HALF), means[..., :-1]], axis=-1)
    spread = (0.25 + np.cumsum((x - means) ** 2, axis=-1)) / (t + 1.0)
    known = np.concatenate([np.full((*x.shape[:-1], 1), 0.25), spread[..., :-1]], axis=-1)
    bets = np.sqrt(2.0 * math.log(2.0 / alpha) / (known * t * np.log1p(t)))
    return before, np.minimum(bets, _HALF)
