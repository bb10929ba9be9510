"""How fast a replica decodes at which load, from an engine's counters. Pure.

Speed is tokens per second of one request while it is being decoded: what a client sees. It is read from finished
requests, so that waiting, prompts and idle time do not count.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from serving.engines.base import EngineMetrics

LEAST_TOKENS = 32
"""A span with fewer decoded tokens says nothing."""
_MOST_BAND = 1024
_NEW_SHARE = 0.4
"""Weight of a new reading in the moving average."""


@dataclass(frozen=True)
class Speed:
    """What a span of time showed."""

    running: float
    """Requests that were decoded together, on average."""
    tokens_per_second: float
    """Of one request."""
    tokens: int


def speed(before: EngineMetrics, after: EngineMetrics, *, seconds: float) -> Speed | None:
    """What happened between two readings that lie ``seconds`` apart; None: too little, or the engine does not say.

    Requests are counted when they end, so those in a span may have begun long before it: how many ran together is
    taken from the ends of the span, where any ran there. A restarted engine counts from zero again: then ``after``
    alone is taken.
    """
    if after.decode_seconds < before.decode_seconds:
        before = EngineMetrics()
    decoding = after.decode_seconds - before.decode_seconds
    tokens = after.decoded_tokens - before.decoded_tokens
    if decoding <= 0 or seconds <= 0 or tokens < LEAST_TOKENS:
        return None
    at_ends = 0.5 * (before.running + after.running)
    together = at_ends if at_ends > 0 else decoding / seconds
    return Speed(running=max(1.0, together), tokens_per_second=tokens / decoding, tokens=int(tokens))


def band(running: float) -> int:
    """Loads that are compared with one another: 1, 2, 3-4, 5-8, 9-16, … running requests; the band's upper end."""
    upper = 1
    while upper < min(running - 0.5, _MOST_BAND):
        upper *= 2
    return upper


@dataclass(frozen=True)
class SpeedTable:
    """Tokens per second of one request by band of load; moving averages, so that old conditions are forgotten."""

    by_band: Mapping[int, float] = field(default_factory=dict)

    def with_reading(self, seen: Speed) -> "SpeedTable":
        """The table after one more reading."""
        key = band(seen.running)
        known = self.by_band.get(key)
        value = seen.tokens_per_second
        mixed = value if known is None else known + _NEW_SHARE * (value - known)
        return SpeedTable({**self.by_band, key: mixed})


def speedup(fast: SpeedTable, standard: SpeedTable, running: float) -> float | None:
    """Speed with speculation over speed without it at this load; None where one of them was never seen in this band.

    Neighbouring bands are not mixed here: two different loads would be compared.
    """
    here = band(running)
    if here not in fast.by_band or here not in standard.by_band:
        return None
    return fast.by_band[here] / standard.by_band[here]
