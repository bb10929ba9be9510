"""How much is swapped and measured."""

from dataclasses import dataclass

POLICY = "coder"
STREAMS = 16
MAX_TOKENS = 32
SETTLE_SECONDS = 12.0
"""Clients talk and nothing counts: before the first block, and between blocks, so that no answer is in two."""


@dataclass(frozen=True)
class Plan:
    """A run; blocks with swaps and blocks without alternate."""

    lora_swaps: int = 50
    lora_blocks: int = 5
    """With swaps, and as many without."""
    lora_every: float = 4.0
    """Least seconds from one swap to the next."""
    full_swaps: int = 10
    full_blocks: int = 2
    full_every: float = 12.0
    lora_scored: int = 3
    """Turns of each version that are scored anew."""
    full_scored: int = 8
    scored_straddling: int = 40
    """Most Turns with several versions that are scored anew."""
    quick: bool = False


FULL = Plan()
QUICK = Plan(
    lora_swaps=4,
    lora_blocks=2,
    full_swaps=2,
    full_blocks=1,
    scored_straddling=8,
    quick=True,
)
