"""TrainingRun: one run of the learner, as a record that can be watched and pictured."""

from enum import StrEnum
from typing import Any, Literal

from pydantic import Field

from core.alarm import Alarm
from core.noun import Noun, now


class RunStatus(StrEnum):
    """The life of a TrainingRun."""

    RUNNING = "running"
    FINISHED = "finished"
    STOPPED = "stopped"
    """An alarm ended it; ``error`` says which, and every version that it published stays."""
    FAILED = "failed"


class DomainMetrics(Noun):
    """What one Domain's groups of a step showed."""

    groups: int
    attempts: int
    """Those that counted."""
    zero_variance_groups: int
    """Groups that taught nothing: all rewards alike, or fewer than two."""
    reward_mean: float | None = None
    success_rate: float | None = None
    response_tokens: float = 0.0
    """Mean sampled tokens of an attempt."""


class StepMetrics(Noun):
    """What one optimizer step showed."""

    step: int
    version: int
    """The PolicyVersion that this step published."""
    reward_mean: float | None = None
    success_rate: float | None = None
    loss: float
    gradient_norm: float
    values: dict[str, float] = Field(default_factory=dict)
    """clip_share, mismatch_kl, ess, entropy, tokens, generate_seconds, train_seconds, swap_seconds, …"""
    domains: dict[str, DomainMetrics] = Field(default_factory=dict)
    """By name, those that the step had groups of."""
    alarms: tuple[Alarm, ...] = ()
    created_at: float = Field(default_factory=now)


class TrainingRun(Noun):
    """SFT, GRPO or learning from live traffic on one Policy from ``start_version`` on."""

    id: str
    policy: str
    algorithm: Literal["sft", "grpo", "live"]
    start_version: int
    domains: tuple[str, ...]
    planned_steps: int
    seed: int
    status: RunStatus = RunStatus.RUNNING
    steps: tuple[StepMetrics, ...] = ()
    config: dict[str, Any] = Field(default_factory=dict)
    error: str | None = None
    job_id: str | None = None
    """The train job that leads the run."""
    lease_token: int = 0
    """The token of that job's lease; who holds an older one may not change the run any more."""
    created_at: float = Field(default_factory=now)
