"""What the learning benchmark trains and measures."""

from dataclasses import dataclass, field
from typing import Any

from hone.demo.plan import DemoPlan

DOMAINS = ("python_tool", "letters", "json_format", "code")
SEEDS = (0, 1, 2)
MIXED = "mixed"
"""Name of the runs that train on all Domains."""
MARGIN = 0.03
"""Loss of held-out success that still counts as nothing forgotten."""


@dataclass(frozen=True)
class Plan:
    """One run's sizes."""

    warmup_tasks: int = 64
    warmup_steps: int = 16
    train_tasks: int = 512
    heldout_tasks: int = 200
    other_tasks: int = 100
    """Held-out Tasks of each other Domain, for what was forgotten."""
    grpo_steps: int = 8
    mixed_steps: int = 16
    temperature: float = 1.0
    sft: dict[str, Any] = field(default_factory=lambda: DemoPlan().sft_overrides)
    """As the demo trains, so that the curves are of what its users see."""
    grpo: dict[str, Any] = field(default_factory=lambda: DemoPlan().grpo_overrides)


FULL = Plan()
QUICK = Plan(
    warmup_tasks=8, warmup_steps=2, train_tasks=32, heldout_tasks=8, other_tasks=4, grpo_steps=1, mixed_steps=1
)
