"""Log-probs of given tokens from hidden states, without the logits of all tokens in memory at once.

Logits are made for a chunk of tokens at a time, in float32 (float64 for float64 input), reduced to
log-sum-exp and the target's logit, and made again in the backward pass. Memory is chunk_tokens x vocabulary
instead of tokens x vocabulary. The float32 head also matters for training itself: rounding there is a large
part of the disagreement between learner and engine (ScaleRL, arXiv 2510.13786).
"""

from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


def token_logprobs(
    hidden: Tensor,
    head_weight: Tensor,
    targets: Tensor,
    *,
    chunk_tokens: int = 1024,
    temperature: float = 1.0,
) -> Tensor:
    """log softmax(hidden @ head_weight.T / temperature)[targets], with the shape of ``targets``.

    ``hidden`` is (..., features), ``head_weight`` (vocabulary, features), ``targets`` (...): ``hidden[i]``
    predicts ``targets[i]``, so the caller shifts. Value and gradient (both inputs) equal the plain
    computation's. The whole ``head_weight`` must be on this rank.
    """
    logprobs, _ = _apply(hidden, head_weight, targets, chunk_tokens, temperature, False)
    return logprobs


def token_logprobs_and_entropy(
    hidden: Tensor,
    head_weight: Tensor,
    targets: Tensor,
    *,
    chunk_tokens: int = 1024,
    temperature: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """``token_logprobs`` and the entropy (nats) of each token's distribution; the entropy has no gradient."""
    return _apply(hidden, head_weight, targets, chunk_tokens, temperature, True)


def sequence_logprobs(
    hidden: Tensor,
    head_weight: Tensor,
    tokens: Tensor,
    mask: Tensor,
    *,
    chunk_tokens: int = 1024,
    temperature: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """Log-prob of token t at index t, and the entropy there, for (rows, tokens) where ``mask`` is 1; else 0.

    ``hidden`` is (rows, tokens, features), unshifted. Only masked-in tokens go through the head, so prompts
    and padding cost nothing there. The first token of a row has nothing before it and gets 0.
    """
    wanted = mask[:, 1:].bool()
    logprobs, entropy = _apply(
        hidden[:, :-1][wanted], head_weight, tokens[:, 1:][wanted], chunk_tokens, temperature, True
    )
    return _spread(logprobs, wanted), _spread(entropy, wanted)


def tree_logprobs(
    hidden: Tensor,
    head_weight: Tensor,
    tokens: Tensor,
    mask: Tensor,
    predecessors: Tensor,
    *,
    chunk_tokens: int = 1024,
    temperature: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """``sequence_logprobs`` for one row, (1, tokens), in which ``predecessors`` names what predicts each token.

    Where that is -1 nothing does: such a token gets 0.
    """
    wanted = mask.bool() & (predecessors >= 0)
    logprobs, entropy = _apply(
        hidden[0, predecessors[wanted]], head_weight, tokens[wanted], chunk_tokens, temperature, True
    )
    empty = torch.zeros(wanted.shape, dtype=logprobs.dtype, device=logprobs.device)
    return empty.masked_scatter(wanted, logprobs), empty.masked_scatter(wanted, entropy)


def _spread(values: Tensor, wanted: Tensor) -> Tensor:
    empty = torch.zeros(wanted.shape, dtype=values.dtype, device=values.device)
    return torch.nn.functional.pad(empty.masked_scatter(wanted, values), (1, 0))


def _apply(
    hidden: Tensor, head_weight: Tensor, targets: Tensor, chunk_tokens: int, temperature: float, entropy: bool
) -> tuple[Tensor, Tensor]:
    if chunk_tokens < 1 or temperature <= 0:
        raise ValueError(f"chunk_tokens {chunk_tokens} and temperature {temperature} must be positive")
    flat = hidden.reshape(-1, hidden.shape[-1])
    outputs = _ChunkedLogprobs.apply(flat, head_weight, targets.reshape(-1), chunk_tokens, temperature, entropy)  # type: ignore[no-untyped-call]
    logprobs, entropies = cast(tuple[Tensor, Tensor], outputs)
    return logprobs.view(targets.shape), entropies.view(targets.shape) if entropy else entropies


def _compute_dtype(hidden: Tensor) -> torch.dtype:
    return torch.float64 if hidden.dtype == torch.float64 else torch.float32


class _ChunkedLogprobs(torch.autograd.Function):
    """The reduction over the vocabulary, chunk by chunk, recomputed in backward."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        head_weight: Tensor,
        targets: Tensor,
        chunk_tokens: int,
        temperature: float,
        with_entropy: bool,
    ) -> tuple[Tensor, Tensor]:
        dtype = _compute_dtype(hidden)
        # Under autocast the product would silently go back to 16 bits.
        with torch.autocast(hidden.device.type, enabled=False):
            weight = head_weight.to(dtype)
            normaliser = hidden.new_empty(len(targets), dtype=dtype)
            chosen = torch.empty_like(normaliser)
            entropy = torch.empty_like(normaliser) if with_entropy else normaliser.new_empty(0)
            for start in range(0, len(targets), chunk_tokens):
                part = slice(start, start + chunk_tokens)
                logits = (hidden[part].to(dtype) @ weight.t()).div_(temperature)
                normaliser[part] = logits.logsumexp(dim=-1)
                chosen[part] = logits.gather(1, targets[part].unsqueeze(1)).squeeze(1)
                if with_entropy:
                    mean = ((logits - normaliser[part].unsqueeze(1)).exp_().mul_(logits)).sum(dim=-1)
                    entropy[part] = normaliser[part] - mean
        ctx.save_for_backward(hidden, head_weight, targets, normaliser)
        ctx.chunk_tokens, ctx.temperature = chunk_tokens, temperature
        ctx.mark_non_differentiable(entropy)
        return chosen - normaliser, entropy

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any,
        grad_logprobs: Tensor,
        _: Tensor,
    ) -> tuple[Tensor | None, ...]:
        hidden, head_weight, targets, normaliser = ctx.saved_tensors
        dtype = _compute_dtype(hidden)
        grad_hidden = torch.empty_like(hidden) if ctx.needs_input_grad[0] else None
        grad_weight = torch.zeros_like(head_weight, dtype=dtype) if ctx.needs_input_grad[1] else None
        with torch.autocast(hidden.device.type, enabled=False):
            weight = head_weight.to(dtype)
            for start in range(0, len(targets), ctx.chunk_tokens):
                part = slice(start, start + ctx.chunk_tokens)
                states = hidden[part].to(dtype)
                logits = (states @ weight.t()).div_(ctx.temperature)
                gradient = grad_logprobs[part].to(dtype).div(ctx.temperature).unsqueeze(1)
                # d logprob / d logits = one-hot(target) - softmax
                grad_logits = logits.sub_(normaliser[part].unsqueeze(1)).exp_().mul_(-gradient)
                grad_logits.scatter_add_(1, targets[part].unsqueeze(1), gradient)
                if grad_hidden is not None:
                    grad_hidden[part] = (grad_logits @ weight).to(hidden.dtype)
                if grad_weight is not None:
                    grad_weight += grad_logits.t() @ states
        if grad_weight is not None:
            grad_weight = grad_weight.to(head_weight.dtype)
        return grad_hidden, grad_weight, None, None, None, None
