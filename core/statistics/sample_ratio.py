"""Sample-ratio check: does traffic split as it was told to? A split that does not means that no result counts."""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

_log_gamma = np.vectorize(math.lgamma, otypes=[np.float64])

CONCENTRATION = 10_000.0
"""How near to the planned split a broken one is expected to be: larger finds small faults sooner."""


def sample_ratio_evidence(
    counts: Sequence[int], shares: Sequence[float], *, concentration: float = CONCENTRATION
) -> float:
    """Log Bayes factor against 'arms are drawn by ``shares``', after ``counts`` units in each arm.

    log [ G(a0) / G(a0 + n) * prod G(a_i + n_i) / G(a_i) / prod p_i^n_i ] with a_i = concentration * p_i. It is a
    non-negative martingale under the null: alarm when it ever reaches log(1 / alpha), at most ``alpha`` of healthy
    experiments ever do. Source: Lindon and Malek (2022), NeurIPS, "Anytime-valid inference for multinomial count
    data"; concentration as in GrowthBook.
    """
    return float(sample_ratio_path(np.asarray([counts], dtype=np.float64), shares, concentration=concentration)[0])


def sample_ratio_path(
    counts: NDArray[np.float64], shares: Sequence[float], *, concentration: float = CONCENTRATION
) -> NDArray[np.float64]:
    """``sample_ratio_evidence`` for each row of (looks, arms)."""
    planned = np.asarray(shares, dtype=np.float64)
    if counts.shape[-1] != len(planned) or abs(planned.sum() - 1.0) > 1e-9 or (planned <= 0).any():
        raise ValueError("there is one positive share for each arm, and they sum to 1")
    prior = concentration * planned
    total = counts.sum(axis=-1)
    evidence = _log_gamma(prior.sum()) - _log_gamma(prior.sum() + total)
    evidence = evidence + (_log_gamma(prior + counts) - _log_gamma(prior) - counts * np.log(planned)).sum(axis=-1)
    return np.asarray(evidence, dtype=np.float64)
