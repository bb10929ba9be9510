"""PrefixUse: how much of an Episode's prompts the engine's prefix cache had already."""

from collections.abc import Iterable

from core.noun import Noun
from core.turn import Turn


class PrefixUse(Noun):
    """Sums over the Turns of which the engine says how many tokens of the prompt were cached."""

    turns: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    hit_rate: float | None = None
    """Cached share of the prompt tokens; None: the engine says nothing of any Turn."""


def prefix_use(turns: Iterable[Turn]) -> PrefixUse:
    """What the Turns of an Episode say; answers to one prompt count once."""
    told = [turn for turn in turns if turn.usage.cached_tokens is not None and turn.choice == 0]
    prompt = sum(turn.usage.prompt_tokens for turn in told)
    cached = sum(turn.usage.cached_tokens or 0 for turn in told)
    rate = cached / prompt if prompt else None
    return PrefixUse(turns=len(told), prompt_tokens=prompt, cached_tokens=cached, hit_rate=rate)
