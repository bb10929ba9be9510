"""How well draft tokens are accepted, from an engine's counters. Pure."""

from dataclasses import dataclass

from serving.engines.base import EngineMetrics


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


def acceptance(before: EngineMetrics, after: EngineMetrics) -> Acceptance | None:
    """What happened between two readings of ``Engine.metrics``; None without a speculation step in between.

    A restarted engine counts from zero again, which shows as a fall: then ``after`` alone is taken.
    """
    if after.drafts < before.drafts:
        before = EngineMetrics()
    drafts = after.drafts - before.drafts
    draft_tokens = after.draft_tokens - before.draft_tokens
    accepted = after.accepted_tokens - before.accepted_tokens
    if drafts <= 0 or draft_tokens <= 0:
        return None
    earlier = before.accepted_by_position or (0.0,) * len(after.accepted_by_position)
    return Acceptance(
        drafts=int(drafts),
        draft_tokens=int(draft_tokens),
        accepted_tokens=int(accepted),
        rate=accepted / draft_tokens,
        tokens_per_step=1.0 + accepted / drafts,
        by_position=tuple(
            (now - then) / drafts for now, then in zip(after.accepted_by_position, earlier, strict=False)
        ),
    )
