"""Advantages and loss of a critic that predicts the return at every token. Pure.

Shapes as in ``learner.loss``. Tokens outside the mask (tool results, prompts) are passed over: the value after a
sampled token is that of the next sampled one.

Sources: GAE (arXiv 1506.02438), value clipping (PPO, arXiv 1707.06347), both as in verl ``core_algos.py``.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from learner.loss import inside

_EPS = 1e-8


@dataclass(frozen=True)
class CriticTargets:
    """What a critic and a policy are trained towards, one value per token, 0 outside the mask."""

    advantages: Tensor
    """Not whitened."""
    returns: Tensor


@torch.no_grad()
def generalised_advantages(
    rewards: Tensor, values: Tensor, mask: Tensor, *, discount: float = 1.0, decay: float = 0.95
) -> CriticTargets:
    """GAE over each row. ``rewards`` and ``values`` per token; ``discount`` is gamma, ``decay`` lambda."""
    next_value = torch.zeros_like(values[:, 0])
    carried = torch.zeros_like(next_value)
    advantages = torch.zeros_like(values)
    for index in range(values.shape[1] - 1, -1, -1):
        sampled = mask[:, index].bool()
        surprise = rewards[:, index] + discount * next_value - values[:, index]
        carried = torch.where(sampled, surprise + discount * decay * carried, carried)
        next_value = torch.where(sampled, values[:, index], next_value)
        advantages[:, index] = carried
    return CriticTargets(advantages=inside(advantages, mask), returns=inside(advantages + values, mask))


@torch.no_grad()
def whitened(advantages: Tensor, mask: Tensor) -> Tensor:
    """(advantage - mean) / sqrt(unbiased variance + 1e-8) over the tokens of the mask; 0 outside.

    Over the tokens of this call: give it all those of the optimizer step.
    """
    chosen = advantages[mask.bool()]
    if chosen.numel() < 2:
        return torch.zeros_like(advantages)
    scaled = (advantages - chosen.mean()) * torch.rsqrt(chosen.var(unbiased=True) + _EPS)
    return inside(scaled, mask)


def value_loss(predicted: Tensor, old_values: Tensor, returns: Tensor, mask: Tensor, *, clip: float = 0.5) -> Tensor:
    """Half the larger of the clipped and the plain squared error per token, 0 outside the mask."""
    clipped = torch.minimum(torch.maximum(predicted, old_values - clip), old_values + clip)
    return inside(torch.maximum((predicted - returns).square(), (clipped - returns).square()) / 2, mask)
