"""Several questions at once: p-values adjusted so that the error of the whole family is bounded."""

from collections.abc import Mapping


def holm(p_values: Mapping[str, float]) -> dict[str, float]:
    """Adjusted p-values that bound the chance of even one false positive (family-wise error).

    In order of size the k-th smallest of m is multiplied by m - k + 1, made monotone and at most 1. Source: Holm
    (1979), Scandinavian Journal of Statistics 6, 65-70.
    """
    adjusted: dict[str, float] = {}
    largest = 0.0
    ordered = sorted(p_values.items(), key=lambda item: item[1])
    for rank, (name, value) in enumerate(ordered):
        largest = max(largest, min(1.0, value * (len(ordered) - rank)))
        adjusted[name] = largest
    return {name: adjusted[name] for name in p_values}


def benjamini_hochberg(p_values: Mapping[str, float]) -> dict[str, float]:
    """Adjusted p-values that bound the expected share of false positives among the positives: for dashboards.

    Source: Benjamini and Hochberg (1995), JRSS B 57, 289-300.
    """
    adjusted: dict[str, float] = {}
    smallest = 1.0
    ordered = sorted(p_values.items(), key=lambda item: item[1], reverse=True)
    for rank, (name, value) in enumerate(ordered):
        smallest = min(smallest, value * len(ordered) / (len(ordered) - rank))
        adjusted[name] = smallest
    return {name: adjusted[name] for name in p_values}
