"""From gradients to rows and checks."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from bench.checks import Check

LIMIT = 1e-4
"""Largest relative difference of a gradient: float32, summed in another order."""
LAYOUTS = 28


def relative_error(found: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> float:
    """Over all parameters, the largest difference as a share of that parameter's largest gradient."""
    if set(found) != set(expected):
        raise ValueError(f"other parameters were trained: {sorted(set(found) ^ set(expected))[:3]}")
    return max(_error(found[name], expected[name]) for name in expected)


def _error(found: Tensor, expected: Tensor) -> float:
    largest = float(expected.abs().max())
    return float((found - expected).abs().max()) / largest if largest else float(found.abs().max())


def ratio_of(found: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> float:
    """How many times too long the whole gradient is: a factor shows here."""
    return float(torch.cat([one.flatten() for one in found.values()]).norm()) / float(
        torch.cat([one.flatten() for one in expected.values()]).norm()
    )


def checks(rows: Sequence[Mapping[str, Any]]) -> list[Check]:
    """``layouts``: how many of the gate's have the right gradient; the error is the largest of all."""
    good = sum(1 for row in rows if row["main"] and row["error"] is not None and row["error"] <= LIMIT)
    errors = [row["error"] for row in rows if not row["refused"]]
    worst = None if not errors or None in errors else float(f"{max(errors):.3g}")
    return [
        {"name": "layouts", "value": good, "unit": "", "target": f">= {LAYOUTS}"},
        {"name": "gradient_max_relative_error", "value": worst, "unit": "", "target": f"<= {LIMIT}"},
    ]
