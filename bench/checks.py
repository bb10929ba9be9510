"""Checks of all benchmarks: a measured value beside its target, and percentiles that they are made of."""

from collections.abc import Callable, Sequence
from typing import Any

Check = dict[str, Any]
"""``name``, ``value`` (None: not measured), ``unit`` and ``target`` such as ``<= 1.5``."""


def check(name: str, value: float | None, unit: str, target: str) -> Check:
    """One line of a results file's ``checks``."""
    return {"name": name, "value": None if value is None else round(value, 3), "unit": unit, "target": target}


def met(checked: Check) -> bool:
    """Whether a check's value meets its target; what was not measured meets none."""
    value, (sign, bound) = checked["value"], checked["target"].split()
    if value is None:
        return False
    compare: dict[str, Callable[[float, float], bool]] = {
        ">=": lambda left, right: left >= right,
        "<=": lambda left, right: left <= right,
        "==": lambda left, right: left == right,
    }
    return compare[sign](float(value), float(bound))


def percentile(values: Sequence[float], share: float) -> float | None:
    """The smallest value that at least ``share`` (0 to 1) of all do not exceed; None of nothing."""
    if not values:
        return None
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, int(len(ordered) * share + 0.999999) - 1))]


def ratio(over: float | None, under: float | None) -> float | None:
    """``over / under``; None where either is missing or nothing can be divided by."""
    return None if over is None or not under else over / under
