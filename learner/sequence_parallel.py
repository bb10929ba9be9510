"""Ulysses sequence parallel: the ranks of a SequenceGroup hold parts of one row's tokens, and share its attention.

Each rank computes its own tokens in every layer; before attention an all-to-all gives it all tokens of some heads,
and after it all heads of its tokens again. So attention sees whole rows, trees of segments included. Log-probs of all
tokens are then summed over the group: every rank has the whole row's, and computes the whole loss.

The gradient: each rank differentiates the whole loss, but only through its own tokens' log-probs, so the sum over the
group is the gradient, as the sum over data-parallel ranks is. DeepSpeed is not told of the groups. It averages over
all ranks in every ZeRO stage, and the one factor, the number of all ranks, undoes that. (Told of them, stages 1 and 2
sum over a group where stage 3 averages, which makes a gradient too large by the group's size.)

Source: DeepSpeed-Ulysses (arXiv 2309.14509).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.distributed
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import pad

from learner.logprobs import token_logprobs_and_entropy
from learner.token_tree import Segment


@dataclass(frozen=True)
class SequenceGroup:
    """The ranks that share rows, seen from one of them."""

    rank: int
    """This one's place in the group."""
    size: int
    group: Any
    """Their torch process group."""

    def shard(self, width: int) -> slice:
        """This rank's tokens of rows whose width the size divides."""
        part = width // self.size
        return slice(self.rank * part, (self.rank + 1) * part)

    def padding(self, width: int) -> int:
        """Tokens to add so that the size divides the width."""
        return -width % self.size

    def gather_tokens(self, states: Tensor) -> Tensor:
        """(rows, heads, own tokens, features) → (rows, own heads, tokens, features)."""
        rows, heads, tokens, features = states.shape
        parts = states.reshape(rows, self.size, heads // self.size, tokens, features).movedim(1, 0)
        whole = self._exchange(parts).movedim(0, 2)
        return whole.reshape(rows, heads // self.size, self.size * tokens, features)

    def gather_heads(self, states: Tensor) -> Tensor:
        """(rows, own heads, tokens, features) → (rows, heads, own tokens, features)."""
        rows, heads, tokens, features = states.shape
        parts = states.reshape(rows, heads, self.size, tokens // self.size, features).movedim(2, 0)
        return self._exchange(parts).movedim(0, 1).reshape(rows, self.size * heads, tokens // self.size, features)

    def sum(self, values: Tensor) -> Tensor:
        """The sum over the group on every rank; its gradient is this rank's own."""
        return cast(Tensor, _Sum.apply(values, self.group))  # type: ignore[no-untyped-call]

    def _exchange(self, parts: Tensor) -> Tensor:
        return cast(Tensor, _Exchange.apply(parts.contiguous(), self.group))  # type: ignore[no-untyped-call]


def pad_segments(segments: Sequence[Segment], width: int, padding: int) -> Sequence[Segment]:
    """With one more segment of ``padding`` tokens, which nothing else sees."""
    return (*segments, Segment(start=width, end=width + padding, context=())) if padding else segments


def pad_tokens(values: Tensor, padding: int) -> Tensor:
    """Zeros on the right."""
    return pad(values, (0, padding)) if padding else values


def sharded_logprobs(
    hidden: Tensor,
    head_weight: Tensor,
    tokens: Tensor,
    mask: Tensor,
    predecessors: Tensor | None,
    *,
    sequence: SequenceGroup,
    chunk_tokens: int,
    temperature: float,
) -> tuple[Tensor, Tensor]:
    """``sequence_logprobs`` or ``tree_logprobs`` of whole rows from the hidden states of this rank's tokens.

    Each rank computes the tokens that its own predict.
    """
    width = tokens.shape[1]
    if predecessors is None:
        predecessors = torch.arange(-1, width - 1, device=tokens.device).expand_as(tokens)
    own = sequence.shard(width + sequence.padding(width))
    wanted = mask.bool() & (predecessors >= max(own.start, 0)) & (predecessors < own.stop)
    rows = wanted.nonzero()[:, 0]
    logprobs, entropy = token_logprobs_and_entropy(
        hidden[rows, predecessors[wanted] - own.start],
        head_weight,
        tokens[wanted],
        chunk_tokens=chunk_tokens,
        temperature=temperature,
    )
    empty = torch.zeros(tokens.shape, dtype=logprobs.dtype, device=tokens.device)
    both = torch.stack([empty.masked_scatter(wanted, logprobs), empty.masked_scatter(wanted, entropy)])
    whole = sequence.sum(both)
    return whole[0], whole[1].detach()


class _Exchange(torch.autograd.Function):
    """Part i of the first dimension goes to rank i, and part i comes from rank i: its own transpose."""

    @staticmethod
    def forward(ctx: Any, parts: Tensor, group: Any) -> Tensor:
        ctx.group = group
        return _all_to_all(parts, group)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return _all_to_all(gradient.contiguous(), ctx.group), None


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, group: Any) -> Tensor:
        total = values.clone()
        torch.distributed.all_reduce(total, group=group)
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient, None


def _all_to_all(parts: Tensor, group: Any) -> Tensor:
    received = torch.empty_like(parts)
    torch.distributed.all_to_all_single(received, parts, group=group)
    return received
