"""What the demo does, in numbers: chosen so that a 135M model shows its rise on two CPU cores in minutes."""

from typing import Any

from pydantic import Field

from core.noun import Noun

POLICY = "demo"


class DemoPlan(Noun):
    """Domain, sizes and learner settings of one demo run; docs/demo.md says how they were chosen."""

    domain: str = "python_tool"
    warmup_tasks: int = 64
    warmup_steps: int = 16
    train_tasks: int = 512
    heldout_tasks: int = 200
    grpo_steps: int = 8
    evaluation_temperature: float = 1.0
    sft_overrides: dict[str, Any] = Field(default_factory=lambda: {"sft_batch": 4, "sft_learning_rate": 1e-3})
    grpo_overrides: dict[str, Any] = Field(
        default_factory=lambda: {
            "learning_rate": 3e-4,
            "groups_per_step": 8,
            "group_size": 8,
            "objective.advantage": "none",
            "max_staleness": 0,
        }
    )
