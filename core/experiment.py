"""Experiment and Assignment: how traffic is split, and which arm a key got."""

import hashlib
from typing import Any, Literal

from pydantic import Field, model_validator

from core.guardrails import Guardrails
from core.noun import Noun, now
from core.variant import Variant


class Arm(Noun):
    """One side of an Experiment."""

    name: str
    version: int
    variant: Variant = Variant.STANDARD
    share: float = Field(ge=0.0, le=1.0)


class Experiment(Noun):
    """A shadow or an A/B split between PolicyVersions or Variants of one Policy."""

    id: str
    policy: str
    kind: Literal["ab", "shadow"]
    arms: tuple[Arm, ...] = Field(min_length=2)
    salt: str
    status: Literal["running", "stopped"] = "running"
    key: Literal["user", "episode", "api_key"] = "episode"
    """What sticks to an arm."""
    sample_share: float = Field(default=1.0, ge=0.0, le=1.0)
    """Of a shadow: share of requests that are mirrored."""
    max_requests: int | None = None
    """Of a shadow: most requests that are mirrored."""
    max_tokens: int | None = None
    """Of a shadow: most tokens that the candidate may sample."""
    stage: int = 0
    """Of a ramp: which stage's shares ``arms`` has."""
    stage_since: float | None = None
    earlier_shares: tuple[float, ...] = ()
    """Of a ramp: the candidate's share in each stage before this one."""
    guardrails: Guardrails = Guardrails()
    """Of an A/B: what ends it at once."""
    notify_url: str | None = None
    """Of an A/B: webhook that hears of its end by a guardrail, beside the configured one."""
    release_id: str | None = None
    """The Release that it gathers evidence for."""
    stopped_because: str | None = None
    stopped_at: float | None = None
    evidence: dict[str, Any] = Field(default_factory=dict)
    """What its end rests on."""
    created_at: float = Field(default_factory=now)

    @model_validator(mode="after")
    def _shares_sum_to_one(self) -> "Experiment":
        if abs(sum(arm.share for arm in self.arms) - 1.0) > 1e-9:
            raise ValueError("the shares of an Experiment's arms sum to 1")
        return self


class Assignment(Noun):
    """Which arm a key got, and why."""

    experiment_id: str
    key: str
    arm: str
    bucket: float
    reason: str = "hash"
    turn_id: str | None = None
    """The Turn of first exposure."""
    tenant_id: str | None = None
    """Whose key it is: it goes with the Tenant."""
    stage: int = 0
    """Stage of the ramp at first exposure."""
    created_at: float = Field(default_factory=now)


def assign(experiment: Experiment, key: str) -> Assignment:
    """The arm for ``key``: a salted hash in [0, 1) against the cumulated shares; the same key, the same arm."""
    digest = hashlib.sha256(f"{experiment.salt}:{key}".encode()).digest()
    bucket = int.from_bytes(digest[:8], "big") / 2**64
    reached = 0.0
    for arm in experiment.arms:
        reached += arm.share
        if bucket < reached:
            return Assignment(experiment_id=experiment.id, key=key, arm=arm.name, bucket=bucket)
    return Assignment(experiment_id=experiment.id, key=key, arm=experiment.arms[-1].name, bucket=bucket)
