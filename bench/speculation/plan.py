"""How much the speculation benchmark asks, in numbers."""

from dataclasses import dataclass, field
from typing import Any

TEXT_TEMPERATURE = 0.0
"""At which targets are asked for the drafters' training text: as they are measured."""
POLICY = "post"
"""Name under which engines know the post-trained target."""
DRAFT_TOKENS = 3
"""Per step of the trained drafter: what ``drafter_accepted_per_draft_k3`` is about."""
LOOKUP_TOKENS = 6
"""Most tokens per step that are looked up in the text so far; looking costs nothing, so more are tried."""


@dataclass(frozen=True)
class Plan:
    """One run."""

    name: str
    prompts: dict[int, int]
    """Requests at a time → prompts per Domain."""
    max_tokens: int
    """Longest answer."""
    train_prompts: int
    """Per Domain: what the targets are asked for the drafters' training text."""
    demonstrations: int
    """Per Domain, for post-training."""
    learner: dict[str, Any] = field(default_factory=dict)
    drafter: dict[str, Any] = field(default_factory=dict)
    upkeep: dict[str, Any] = field(default_factory=dict)
    """What upkeep changes of ``drafter``."""


FULL = Plan(
    name="full",
    prompts={1: 3, 4: 4, 16: 16},
    max_tokens=64,
    train_prompts=64,
    demonstrations=32,
    learner={"sft_batch": 4, "sft_learning_rate": 1e-3},
    drafter={"epochs": 8, "min_tokens": 0},
)

QUICK = Plan(
    name="quick",
    prompts={1: 1, 4: 2, 16: 4},
    max_tokens=24,
    train_prompts=8,
    demonstrations=4,
    learner={"sft_batch": 4, "sft_learning_rate": 1e-3},
    drafter={"epochs": 1, "min_tokens": 0},
)
