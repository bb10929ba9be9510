"""How well draft tokens are accepted, from an engine's counters. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass

_DRAFTS = "vllm:spec_decode_num_drafts_total"
_DRAFT_TOKENS = "vllm:spec_decode_num_draft_tokens_total"
_ACCEPTED_TOKENS = "vllm:spec_decode_num_accepted_tokens_total"
_PER_POSITION = "vllm:spec_decode_num_accepted_tokens_per_pos_total"


@dataclass(frozen=True)
class Acceptance:
    """What a span of time showed."""

    drafts: int
    """Speculation steps."""
    draft_tokens: int
    accepted_tokens: int
    rate: float
    """Accepted share of the draft tokens."""
    tokens_per_step: float
    """Tokens gained per step of the target model: the accepted ones and its own."""
    by_position: tuple[float, ...]
    """Share of the steps in which the draft token at this position was accepted."""


def acceptance(before: Mapping[str, float], after: Mapping[str, float]) -> Acceptance | None:
    """What happened between two readings of ``Engine.metrics``; None without a speculation step in between.

    A restarted engine counts from zero again, which shows as a fall: then ``after`` alone is taken.
    """
    if after.get(_DRAFTS, 0.0) < before.get(_DRAFTS, 0.0):
        before = {}

    def gained(name: str) -> float:
        return max(0.0, after.get(name, 0.0) - before.get(name, 0.0))

    drafts, draft_tokens, accepted = gained(_DRAFTS), gained(_DRAFT_TOKENS), gained(_ACCEPTED_TOKENS)
    if drafts <= 0 or draft_tokens <= 0:
        return None
    positions: list[float] = []
    while f"{_PER_POSITION}[{len(positions)}]" in after:
        positions.append(gained(f"{_PER_POSITION}[{len(positions)}]") / drafts)
    return Acceptance(
        drafts=int(drafts),
        draft_tokens=int(draft_tokens),
        accepted_tokens=int(accepted),
        rate=accepted / draft_tokens,
        tokens_per_step=1.0 + accepted / drafts,
        by_position=tuple(positions),
    )
