"""Inputs of the losses' reference values: four sequences of thirteen tokens, and four sets of log-probs."""

import torch
from torch import Tensor


def rows(values: list[list[float]]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


MASK = rows([[1, 1, 0, 1, 1], [1, 1, 1, 0, 0], [1, 1, 1, 1, 0], [1, 1, 0, 0, 0]])
NEW = rows([[-0.5, -1.2, -0.1, -0.3, -2], [-0.8, -0.4, -1.5, 0, 0], [-0.2, -0.9, -0.6, -1.1, 0], [-1, -0.7, 0, 0, 0]])
OLD = rows(
    [
        [-0.6, -1, -0.1, -0.7, -2.1],
        [-0.5, -0.45, -1.2, 0, 0],
        [-0.25, -0.8, -0.9, -1, 0],
        [-0.6, -0.75, 0, 0, 0],
    ]
)
ROLL = rows(
    [
        [-0.65, -1.05, -0.1, -0.6, -2.9],
        [-0.55, -0.4, -1.25, 0, 0],
        [-0.25, -0.85, -0.8, -1.05, 0],
        [-0.7, -0.7, 0, 0, 0],
    ]
)
REF = rows(
    [
        [-0.75, -1.1, -0.1, -0.9, -1.9],
        [-0.6, -0.5, -1, 0, 0],
        [-0.3, -0.7, -1, -0.9, 0],
        [-0.8, -0.8, 0, 0, 0],
    ]
)
N = 13
"""Tokens inside the mask."""
