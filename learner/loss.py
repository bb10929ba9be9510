"""Token-level losses, aggregations and statistics, as pure functions over explicit tensors.

All tensors of one call have one shape, rows x tokens; index t of every tensor speaks about token t. ``mask``
is 1 where a token was sampled by the policy. What lies under a 0 of the mask never matters, not even NaN.

Three sets of log-probs are kept apart: behaviour (the engine's, when the token was sampled), old (the
learner's, before the first update on this batch) and new (the learner's now, with gradient). Sums are
divided by counts of the whole optimizer step, which the caller passes in, so that neither the split into
micro-batches nor padding changes the result. Where data-parallel ranks average gradients, the caller
multiplies by their number.

Sources: verl ``core_algos.py`` and ``rollout_corr_helper.py``; DAPO (arXiv 2503.14476: clip-higher, token
mean); dual clip (arXiv 1912.09729); IcePop (as in prime-rl and slime); http://joschu.net/blog/kl-approx.html
(k1, k2, k3).
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from core.errors import LearnerError

_MAX_LOG_RATIO = 20.0
"""exp of more than this says nothing and overflows; verl's bound."""


def token_log_ratio(new_logprobs: Tensor, old_logprobs: Tensor, mask: Tensor) -> Tensor:
    """new - old per token, within +-20; exactly 0 outside the mask."""
    return inside(new_logprobs - old_logprobs, mask).clamp(-_MAX_LOG_RATIO, _MAX_LOG_RATIO)


def clip_loss(
    new_logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    clip_low: float,
    clip_high: float,
    dual_clip: float | None = 3.0,
    token_weights: Tensor | None = None,
) -> Tensor:
    """The clipped policy loss per token, not aggregated, 0 outside the mask.

    The ratio is clipped to [1 - ``clip_low``, 1 + ``clip_high``]. ``dual_clip`` bounds the loss of a token
    with negative advantage to ``dual_clip`` times |advantage|. ``token_weights`` (see ``learner.corrections``)
    multiply the loss and carry no gradient.
    """
    ratio = token_log_ratio(new_logprobs, old_logprobs, mask).exp()
    gain = inside(advantages, mask)
    loss = torch.maximum(-gain * ratio, -gain * ratio.clamp(1 - clip_low, 1 + clip_high))
    if dual_clip is not None:
        loss = torch.where(gain < 0, torch.minimum(loss, -gain * dual_clip), loss)
    if token_weights is not None:
        loss = loss * inside(token_weights.detach(), mask)
    return inside(loss, mask)


def sft_loss(new_logprobs: Tensor, mask: Tensor) -> Tensor:
    """Negative log-likelihood per token, not aggregated, 0 outside the mask."""
    return inside(-new_logprobs, mask)


def kl_k1(new_logprobs: Tensor, reference_logprobs: Tensor, mask: Tensor) -> Tensor:
    """new - reference per token: unbiased as a value, and of no use as a loss (its gradient has mean 0)."""
    return token_log_ratio(new_logprobs, reference_logprobs, mask)


def kl_k2(new_logprobs: Tensor, reference_logprobs: Tensor, mask: Tensor) -> Tensor:
    """(new - reference)^2 / 2 per token: the estimator to use as a loss, its gradient is the KL's."""
    return token_log_ratio(new_logprobs, reference_logprobs, mask).square() / 2


def kl_k3_as_loss(new_logprobs: Tensor, reference_logprobs: Tensor, mask: Tensor) -> Tensor:
    """k3 as a value, with the gradient of k2, which is the KL's (straight-through, verl's ``k3+``)."""
    value = kl_k3(new_logprobs, reference_logprobs, mask).detach()
    gradient = kl_k2(new_logprobs, reference_logprobs, mask)
    return gradient + (value - gradient.detach())


def kl_k3(new_logprobs: Tensor, reference_logprobs: Tensor, mask: Tensor) -> Tensor:
    """exp(reference - new) - (reference - new) - 1 per token: unbiased, never negative, biased as a loss."""
    log_ratio = -token_log_ratio(new_logprobs, reference_logprobs, mask)
    return log_ratio.expm1() - log_ratio


def token_mean(per_token: Tensor, mask: Tensor, global_tokens: float) -> Tensor:
    """Sum over the mask, divided by ``global_tokens``: the loss tokens of the whole optimizer step.

    Every sampled token counts the same, so an Episode that is split over several rows counts once.
    """
    return inside(per_token, mask).sum() / _positive(global_tokens, "global_tokens")


def seq_mean_token_mean(
    per_token: Tensor, mask: Tensor, *, sequence_tokens: Tensor, global_sequences: float
) -> Tensor:
    """The mean over Episodes of each one's mean over its tokens.

    ``sequence_tokens`` (one per token) is the number of loss tokens of the token's whole Episode, wherever they lie,
    and ``global_sequences`` the number of Episodes in the optimizer step: a split Episode counts once.
    """
    shares = inside(per_token / sequence_tokens.clamp(min=1), mask)
    return shares.sum() / _positive(global_sequences, "global_sequences")


def seq_mean_token_sum(per_token: Tensor, mask: Tensor, *, global_sequences: float) -> Tensor:
    """The mean over Episodes of each one's sum over its tokens."""
    return inside(per_token, mask).sum() / _positive(global_sequences, "global_sequences")


def seq_mean_token_sum_norm(
    per_token: Tensor, mask: Tensor, *, constant_tokens: float, global_sequences: float
) -> Tensor:
    """Sum over the mask, divided by Episodes times a constant length (Dr.GRPO).

    The constant is a setting such as the longest allowed answer, never the padded width: that would make the
    loss depend on padding.
    """
    total = seq_mean_token_sum(per_token, mask, global_sequences=global_sequences)
    return total / _positive(constant_tokens, "constant_tokens")


@dataclass(frozen=True)
class LossStatistics:
    """Sums over the tokens of a micro-batch. Add those of several to get the optimizer step's."""

    tokens: float = 0.0
    clipped: float = 0.0
    """Tokens that the trust region left without gradient."""
    kl_sum: float = 0.0
    mismatch_kl_sum: float = 0.0
    weight_sum: float = 0.0
    weight_square_sum: float = 0.0

    def __add__(self, other: "LossStatistics") -> "LossStatistics":
        return LossStatistics(
            tokens=self.tokens + other.tokens,
            clipped=self.clipped + other.clipped,
            kl_sum=self.kl_sum + other.kl_sum,
            mismatch_kl_sum=self.mismatch_kl_sum + other.mismatch_kl_sum,
            weight_sum=self.weight_sum + other.weight_sum,
            weight_square_sum=self.weight_square_sum + other.weight_square_sum,
        )

    @property
    def clip_share(self) -> float:
        """Share of tokens that the trust region left without gradient."""
        return self.clipped / max(self.tokens, 1.0)

    @property
    def approx_kl(self) -> float:
        """Mean of old - new in nats: how far this batch's updates moved the policy (k1; may be negative)."""
        return self.kl_sum / max(self.tokens, 1.0)

    @property
    def mismatch_kl(self) -> float:
        """KL(behaviour || old) in nats per token (k3): engine and learner disagree, or the data are stale."""
        return self.mismatch_kl_sum / max(self.tokens, 1.0)

    @property
    def ess(self) -> float:
        """Effective sample size as a share of the tokens, in (0, 1]; below 0.3 the batch is too stale."""
        if self.weight_square_sum <= 0:
            return 1.0
        return self.weight_sum**2 / (self.weight_square_sum * self.tokens)

    def values(self) -> dict[str, float]:
        """What a StepMetrics records."""
        return {
            "tokens": self.tokens,
            "clip_share": self.clip_share,
            "approx_kl": self.approx_kl,
            "mismatch_kl": self.mismatch_kl,
            "ess": self.ess,
        }


@torch.no_grad()
def clipped_tokens(
    new_logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    clip_low: float,
    clip_high: float,
) -> Tensor:
    """True where the clipped term is the loss of ``clip_loss``: such a token has no gradient."""
    ratio, gain = token_log_ratio(new_logprobs, old_logprobs, mask).exp(), inside(advantages, mask)
    return -gain * ratio.clamp(1 - clip_low, 1 + clip_high) > -gain * ratio


@torch.no_grad()
def loss_statistics(
    new_logprobs: Tensor, old_logprobs: Tensor, behaviour_logprobs: Tensor, mask: Tensor, *, clipped: Tensor
) -> LossStatistics:
    """What one micro-batch shows about movement, mismatch and effective sample size.

    ``clipped``: True for tokens that the trust region of the loss leaves without gradient.
    """
    log_ratio = token_log_ratio(new_logprobs, old_logprobs, mask).double()
    mismatch = token_log_ratio(old_logprobs, behaviour_logprobs, mask).double()
    counted = mask.double()
    weights = mismatch.exp() * counted
    sums = torch.stack(
        [
            counted.sum(),
            (clipped.double() * counted).sum(),
            -log_ratio.sum(),
            (mismatch.expm1() - mismatch).sum(),
            weights.sum(),
            weights.square().sum(),
        ]
    )
    return LossStatistics(*sums.tolist())


def inside(values: Tensor, mask: Tensor) -> Tensor:
    """``values`` where the mask is 1, and exactly 0 elsewhere, whatever stands there."""
    return torch.where(mask.bool(), values, torch.zeros_like(values))


def _positive(count: float, name: str) -> float:
    if count <= 0:
        raise LearnerError(f"{name} is {count}: a batch without anything to learn has no loss")
    return count
