"""Corrections for tokens that were sampled by slightly other probabilities than the learner computes. Pure.

Shapes and log-probs as in ``learner.loss``. A correction is a weight per token without gradient; what it drops
has weight 0 and still counts in the denominator of the loss, since dropping must not raise the weight of the rest.
``sequences`` gives every token the number of its sequence, 0 and up, in the layout of the other tensors: a
sequence may be one row, lie in several rows, or share a row with others.

Sources: TIS and rejection (verl ``rollout_corr_helper.py``, TRL ``grpo_trainer.py``), IcePop (prime-rl, slime),
off-policy sequence masking (DeepSeek-V3.2; slime ``OPSM``; TRL ``off_policy_mask_threshold``).
"""

import torch
from torch import Tensor

from learner.loss import inside, token_log_ratio


def mismatch_weights(old_logprobs: Tensor, behaviour_logprobs: Tensor, *, cap: float) -> Tensor:
    """Truncated importance weights min(exp(old - behaviour), cap) per token (TIS), without gradient."""
    return _weights(old_logprobs, behaviour_logprobs).clamp(max=cap)


def icepop_weights(
    old_logprobs: Tensor, behaviour_logprobs: Tensor, *, low: float = 0.5, high: float = 5.0
) -> Tensor:
    """exp(old - behaviour) inside [low, high], else 0 (IcePop), without gradient."""
    weights = _weights(old_logprobs, behaviour_logprobs)
    return torch.where((weights >= low) & (weights <= high), weights, torch.zeros_like(weights))


def sequence_weights(
    old_logprobs: Tensor, behaviour_logprobs: Tensor, mask: Tensor, sequences: Tensor, *, low: float, high: float
) -> Tensor:
    """1 on every token of a sequence whose exp(sum of old - behaviour) lies in [low, high], else 0.

    One improbable token condemns its whole sequence: what follows it was sampled in a state that the learner's
    policy would hardly have reached.
    """
    total = sum_by_sequence(token_log_ratio(old_logprobs, behaviour_logprobs, mask).detach(), sequences)
    ratio = total.clamp(-20.0, 20.0).exp()
    return _spread((ratio >= low) & (ratio <= high), sequences, old_logprobs)


def sequence_kl_weights(
    old_logprobs: Tensor, behaviour_logprobs: Tensor, mask: Tensor, sequences: Tensor, *, limit: float
) -> Tensor:
    """1 on every token of a sequence whose mean KL(behaviour || old) (k3, nats a token) is at most ``limit``."""
    log_ratio = token_log_ratio(old_logprobs, behaviour_logprobs, mask).detach()
    means = mean_by_sequence(log_ratio.expm1() - log_ratio, mask, sequences)
    return _spread(means <= limit, sequences, old_logprobs)


def stale_negative_weights(
    new_logprobs: Tensor,
    behaviour_logprobs: Tensor,
    advantages: Tensor,
    mask: Tensor,
    sequences: Tensor,
    *,
    limit: float,
) -> Tensor:
    """0 on sequences with a negative advantage that have become improbable by more than ``limit`` nats a token.

    Pushing down what the policy has left already is the common source of collapse on stale data.
    """
    drift = mean_by_sequence(-token_log_ratio(new_logprobs, behaviour_logprobs, mask).detach(), mask, sequences)
    gain = mean_by_sequence(inside(advantages, mask), mask, sequences)
    return _spread(~((gain < 0) & (drift > limit)), sequences, new_logprobs)


def sum_by_sequence(per_token: Tensor, sequences: Tensor) -> Tensor:
    """One sum per sequence, in order of their numbers; differentiable."""
    count = int(sequences.max()) + 1 if sequences.numel() else 0
    sums = torch.zeros(count, dtype=per_token.dtype, device=per_token.device)
    return sums.index_add(0, sequences.reshape(-1), per_token.reshape(-1))


def mean_by_sequence(per_token: Tensor, mask: Tensor, sequences: Tensor) -> Tensor:
    """One mean over the masked tokens per sequence (0 for one without any); differentiable."""
    counts = sum_by_sequence(mask.to(per_token.dtype), sequences)
    return sum_by_sequence(inside(per_token, mask), sequences) / counts.clamp(min=1)


def row_sequences(mask: Tensor) -> Tensor:
    """The numbers of sequences where every row is one."""
    numbers = torch.arange(mask.shape[0], device=mask.device)
    return numbers.unsqueeze(1).expand(mask.shape)


def _spread(keep: Tensor, sequences: Tensor, like: Tensor) -> Tensor:
    return keep.to(like.dtype)[sequences]


def _weights(old_logprobs: Tensor, behaviour_logprobs: Tensor) -> Tensor:
    difference = (old_logprobs - behaviour_logprobs).detach()
    return difference.clamp(-20.0, 20.0).exp()
