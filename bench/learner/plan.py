"""How much the learner's benchmark trains, and how each side is set."""

from dataclasses import dataclass
from typing import Any

GROUP_SIZE = 8
LEARNING_RATE = 1e-4
"""Of LoRA; full weights take a tenth."""
CLIP_LOW, CLIP_HIGH = 0.2, 0.28
LORA: dict[str, Any] = {
    "rank": 16,
    "alpha": 32.0,
    "target_modules": ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"],
}
ADAMW: dict[str, Any] = {"betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": 0.0}
GRADIENT_CLIPPING = 1.0


@dataclass(frozen=True)
class Workload:
    """One table row: the same Episodes, trained by both sides."""

    name: str
    train: str
    """``lora`` or ``full``."""
    prompt_tokens: int
    """Least length of a prompt; it is cut there when it is longer."""
    response_tokens: int
    """Longest response."""
    groups: int
    """Per optimizer step."""


@dataclass(frozen=True)
class Plan:
    """One run."""

    name: str
    workloads: tuple[Workload, ...]
    steps: int
    """Optimizer steps that are measured, after one that is not."""
    rounds: int
    """Times that each side trains; sides take turns, and the median counts."""
    micro_batches: tuple[int, ...]
    """Rows per forward pass that TRL is tried with; its fastest is compared."""
    micro_batch_tokens: tuple[int, ...]
    """Tokens per forward pass that Hone is tried with."""


_SHORT: dict[str, int] = {"prompt_tokens": 64, "response_tokens": 64, "groups": 2}

FULL = Plan(
    name="full",
    workloads=(
        Workload(name="short_lora", train="lora", **_SHORT),
        Workload(name="short_full", train="full", **_SHORT),
        Workload(name="shared_prefix_lora", train="lora", prompt_tokens=512, response_tokens=64, groups=1),
    ),
    steps=2,
    rounds=2,
    micro_batches=(4, 8, 16),
    micro_batch_tokens=(1024, 2048),
)

QUICK = Plan(
    name="quick",
    workloads=(
        Workload(name="short_lora", train="lora", prompt_tokens=32, response_tokens=16, groups=1),
        Workload(name="shared_prefix_lora", train="lora", prompt_tokens=128, response_tokens=16, groups=1),
    ),
    steps=1,
    rounds=1,
    micro_batches=(8,),
    micro_batch_tokens=(2048,),
)
