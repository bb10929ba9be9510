"""Whether two sets of samples come from one distribution: a permutation test, and evidence gathered over time. Pure.

The test can be repeated for ever without the false alarms that repeated p-values give, because each p-value is made
into an e-value before they are put together.
"""

from collections.abc import Sequence

import numpy as np

_LARGEST_EVIDENCE = 1e12


def stratified_permutation_test(
    first: Sequence[Sequence[float]], second: Sequence[Sequence[float]], *, resamples: int = 2_000, seed: int = 0
) -> float:
    """P-value that ``first`` and ``second`` have the same distribution in every stratum (prompt); two-sided.

    Statistic: |sum over strata of (mean of first - mean of second)|. Labels are permuted inside each stratum, so
    that differences between prompts do not count. p = (1 + more extreme) / (1 + resamples), which is valid for
    any number of resamples. Sources: Good, Permutation, Parametric and Bootstrap Tests of Hypotheses (2005), 3;
    Phipson and Smyth (2010), SAGMB 9, 39. Raises ValueError when the strata do not match or one is empty.
    """
    if len(first) != len(second) or not first:
        raise ValueError("both sides need the same strata, and at least one")
    if any(not left or not right for left, right in zip(first, second, strict=True)):
        raise ValueError("every stratum needs a sample on both sides")
    generator = np.random.default_rng(seed)
    observed = 0.0
    permuted = np.zeros(resamples)
    for left, right in zip(first, second, strict=True):
        pooled = np.asarray([*left, *right], dtype=np.float64)
        size = len(left)
        observed += float(pooled[:size].mean() - pooled[size:].mean())
        shuffled = generator.permuted(np.broadcast_to(pooled, (resamples, len(pooled))), axis=1)
        permuted += shuffled[:, :size].mean(axis=1) - shuffled[:, size:].mean(axis=1)
    # Sums of the same numbers in another order differ in their last digits.
    extreme = int(np.count_nonzero(np.abs(permuted) >= abs(observed) - 1e-12))
    return (1 + extreme) / (1 + resamples)


def e_value(p_value: float) -> float:
    """Evidence from one p-value: 0.5 / sqrt(p), whose mean is at most 1 where there is no difference.

    Source: Vovk and Wang (2021), E-values: calibration, combination and applications, Annals of Statistics 49(3),
    1736-1754: f(p) = k p^(k-1) with k = 1/2.
    """
    if not 0.0 < p_value <= 1.0:
        raise ValueError(f"a p-value is in (0, 1], not {p_value}")
    return 0.5 / float(np.sqrt(p_value))


def gathered(evidence: float, p_value: float) -> float:
    """Evidence after one more test: max(1, evidence) times its e-value.

    The expected number of tests until this passes a threshold A without any difference is at least A, however long
    it goes on; a difference that begins late is found as fast as an early one. Source: Shin, Ramdas and Rinaldo
    (2023), E-detectors: a nonparametric framework for sequential change detection, NEJSDS 2(2), section 2 (e-CUSUM).
    """
    return min(max(1.0, evidence) * e_value(p_value), _LARGEST_EVIDENCE)
