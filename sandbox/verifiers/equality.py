"""Equality of JSON values as JSON means it: Python's ``True == 1`` does not hold."""

import math
from typing import Any


def same_json(given: Any, expected: Any, tolerance: float = 0.0) -> bool:
    """Whether two JSON values are equal; numbers may differ by ``tolerance`` relative to the expected one.

    An int and a float of the same value are one JSON number; a boolean is no number.
    """
    if isinstance(given, bool) or isinstance(expected, bool):
        return given is expected
    if isinstance(given, int | float) and isinstance(expected, int | float):
        return _same_number(given, expected, tolerance)
    if type(given) is not type(expected):
        return False
    if isinstance(given, list):
        return len(given) == len(expected) and all(
            same_json(a, b, tolerance) for a, b in zip(given, expected, strict=True)
        )
    if isinstance(given, dict):
        return given.keys() == expected.keys() and all(
            same_json(given[key], expected[key], tolerance) for key in given
        )
    return bool(given == expected)


def _same_number(given: float, expected: float, tolerance: float) -> bool:
    if given == expected:
        return True
    if tolerance == 0.0:
        return False
    try:
        return math.isclose(given, expected, rel_tol=tolerance, abs_tol=tolerance)
    except OverflowError:  # an int beyond the floats is near none of them
        return False
