"""Policy losses beside the clip loss: GSPO, CISPO, DPPO-TV, and the anchored one of prime-rl. Pure.

Shapes, masks and the three sets of log-probs as in ``learner.loss``; every function returns the loss per token,
not aggregated, 0 outside the mask. ``sequences`` as in ``learner.corrections``.

Sources: GSPO (arXiv 2507.18071), CISPO (arXiv 2506.13585; ScaleRL, arXiv 2510.13786), DPPO-TV (arXiv 2602.04879;
verl ``dppo_tv``), prime-rl ``trainer/rl/loss.py``.
"""

import torch
from torch import Tensor

from learner.corrections import mean_by_sequence
from learner.loss import inside, token_log_ratio


def gspo_loss(
    new_logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    mask: Tensor,
    sequences: Tensor,
    *,
    clip_low: float,
    clip_high: float,
    sequence_means: Tensor | None = None,
) -> Tensor:
    """The clip loss with one ratio per sequence, exp of the mean of new - old over its tokens.

    In the token form: each token carries its own gradient, scaled by its sequence's ratio. The clips are far
    narrower than per token (the paper: 3e-4 and 4e-4), as the mean over a sequence moves little.
    ``sequence_means``: the mean of new - old of each sequence (no gradient), where a sequence has tokens outside
    this call.
    """
    log_ratio = token_log_ratio(new_logprobs, old_logprobs, mask)
    if sequence_means is None:
        sequence_means = sequence_log_ratio(new_logprobs, old_logprobs, mask, sequences)
    ratio = (sequence_means.detach()[sequences] + log_ratio - log_ratio.detach()).exp()
    gain = inside(advantages, mask)
    loss = torch.maximum(-gain * ratio, -gain * ratio.clamp(1 - clip_low, 1 + clip_high))
    return inside(loss, mask)


def sequence_log_ratio(new_logprobs: Tensor, old_logprobs: Tensor, mask: Tensor, sequences: Tensor) -> Tensor:
    """The mean of new - old over each sequence's tokens, without gradient: what GSPO clips by."""
    return mean_by_sequence(token_log_ratio(new_logprobs, old_logprobs, mask).detach(), mask, sequences)


def cispo_loss(
    new_logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    cap: float,
    floor: float = 0.0,
) -> Tensor:
    """-weight * advantage * new, the weight being the ratio within [floor, cap] and carrying no gradient.

    ``cap`` is the largest weight itself (TRL's ``epsilon_high``), not its distance from 1 (verl, slime). No
    token loses its gradient, unlike with the clip loss.
    """
    weight = token_log_ratio(new_logprobs, old_logprobs, mask).exp().detach().clamp(floor, cap)
    return inside(-weight * inside(advantages, mask) * inside(new_logprobs, mask), mask)


def dppo_loss(
    new_logprobs: Tensor,
    behaviour_logprobs: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    threshold_low: float,
    threshold_high: float,
    cap: float = 20.0,
) -> Tensor:
    """-keep * min(ratio, cap) * advantage * new, the trust region being a distance of probabilities (DPPO-TV).

    A token is left out when it has moved by more than a threshold in the direction that its advantage pushes:
    ``p - p_behaviour > threshold_high`` with a positive advantage, ``< -threshold_low`` otherwise. A ratio would
    bind rare tokens hardest, whose probability hardly changes.
    """
    ratio = token_log_ratio(new_logprobs, behaviour_logprobs, mask).exp().detach().clamp(max=cap)
    keep = ~beyond_variation(
        new_logprobs, behaviour_logprobs, advantages, mask, threshold_low=threshold_low, threshold_high=threshold_high
    )
    return inside(-keep.to(ratio.dtype) * ratio * inside(advantages, mask) * inside(new_logprobs, mask), mask)


def anchored_loss(
    new_logprobs: Tensor,
    behaviour_logprobs: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    threshold_low: float = 0.2,
    threshold_high: float = 0.2,
    kl_weight: float = 1e-3,
) -> Tensor:
    """-keep * advantage * ratio + ``kl_weight`` * (new - behaviour)^2: prime-rl's default.

    The ratio is that of new to behaviour and carries the gradient; ``keep`` as in ``dppo_loss``. Made for data
    that are several versions old: it needs no old log-probs.
    """
    log_ratio = token_log_ratio(new_logprobs, behaviour_logprobs, mask)
    keep = ~beyond_variation(
        new_logprobs, behaviour_logprobs, advantages, mask, threshold_low=threshold_low, threshold_high=threshold_high
    )
    return inside(
        -keep.to(log_ratio.dtype) * inside(advantages, mask) * log_ratio.exp() + kl_weight * log_ratio.square(), mask
    )


def beyond_variation(
    new_logprobs: Tensor,
    behaviour_logprobs: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    threshold_low: float,
    threshold_high: float,
) -> Tensor:
    """True where a token's probability has moved past a threshold in the direction of its advantage."""
    moved = inside(new_logprobs, mask).detach().exp() - inside(behaviour_logprobs, mask).exp()
    gain = inside(advantages, mask)
    return ((gain > 0) & (moved > threshold_high)) | ((gain <= 0) & (moved < -threshold_low))
