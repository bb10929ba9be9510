"""Attention over a row of Segments, registered with transformers under a name of its own.

The model's ``forward`` passes its keyword ``segments`` on to every layer's attention. Without it, rows are ordinary
causal ones, padded on the right.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

from learner.sequence_parallel import SequenceGroup
from learner.token_tree import Segment

TREE_ATTENTION = "hone_tree"


def tree_attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float | None = None,
    segments: Sequence[Segment] | None = None,
    sequence: SequenceGroup | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """query (rows, heads, tokens, width), key and value with fewer heads → (rows, tokens, heads, width).

    With ``segments`` there is one row. Each segment's cost is that of its own pairs of tokens: no mask over the whole
    row is ever made. With ``sequence`` the tokens are this rank's part of the rows.
    """
    if sequence is not None:
        if key.shape[1] % sequence.size:
            shared = query.shape[1] // key.shape[1]
            key, value = key.repeat_interleave(shared, dim=1), value.repeat_interleave(shared, dim=1)
        query, key, value = (sequence.gather_tokens(states) for states in (query, key, value))
    output = _attend(query, key, value, scaling=scaling, segments=segments)
    if sequence is not None:
        output = sequence.gather_heads(output)
    return output.transpose(1, 2).contiguous(), None


def _attend(
    query: Tensor, key: Tensor, value: Tensor, *, scaling: float | None, segments: Sequence[Segment] | None
) -> Tensor:
    grouped = query.shape[1] != key.shape[1]
    if segments is None:
        return scaled_dot_product_attention(
            query, key, value, is_causal=query.shape[2] > 1, scale=scaling, enable_gqa=grouped
        )
    parts = []
    for segment in segments:
        own = slice(segment.start, segment.end)
        runs = [slice(start, end) for start, end in segment.context] + [own]
        keys = key[:, :, own] if len(runs) == 1 else torch.cat([key[:, :, run] for run in runs], dim=2)
        values = value[:, :, own] if len(runs) == 1 else torch.cat([value[:, :, run] for run in runs], dim=2)
        mask = _mask(segment, query.device) if segment.context else None
        parts.append(
            scaled_dot_product_attention(
                query[:, :, own],
                keys,
                values,
                attn_mask=mask,
                is_causal=mask is None and segment.length > 1,
                scale=scaling,
                enable_gqa=grouped,
            )
        )
    return torch.cat(parts, dim=2)


def _mask(segment: Segment, device: torch.device) -> Tensor:
    """(own tokens, context + own tokens): True where one is seen."""
    before = segment.context_length
    whole = torch.ones(segment.length, before + segment.length, dtype=torch.bool, device=device)
    return whole.tril(diagonal=before)


def register_tree_attention() -> str:
    """Make the attention known to transformers; its name. Calling it again is no error."""
    AttentionInterface.register(TREE_ATTENTION, tree_attention)
    return TREE_ATTENTION
