"""Job: a durable piece of work with a lease, a fencing token, retries and a dead letter."""

from enum import StrEnum
from typing import Any

from pydantic import Field

from core.noun import Noun, now
from core.transitions import TransitionTable


class JobStatus(StrEnum):
    """The life of a Job."""

    QUEUED = "queued"
    LEASED = "leased"
    DONE = "done"
    DEAD = "dead"
    """Out of attempts: kept with its last error until an operator requeues it."""
    CANCELLED = "cancelled"


JOB_TRANSITIONS = TransitionTable(
    "job",
    {
        JobStatus.QUEUED: frozenset({JobStatus.LEASED, JobStatus.CANCELLED}),
        JobStatus.LEASED: frozenset({JobStatus.QUEUED, JobStatus.DONE, JobStatus.DEAD, JobStatus.CANCELLED}),
        JobStatus.DONE: frozenset(),
        JobStatus.DEAD: frozenset({JobStatus.QUEUED}),
        JobStatus.CANCELLED: frozenset(),
    },
)


class Job(Noun):
    """One piece of work. ``token`` grows with each lease; a result with an older token is not taken."""

    id: str
    kind: str
    payload: dict[str, Any]
    status: JobStatus = JobStatus.QUEUED
    priority: int = 0
    """Higher first."""
    attempts: int = 0
    max_attempts: int = 3
    token: int = 0
    owner: str | None = None
    lease_until: float | None = None
    run_after: float = 0.0
    result: dict[str, Any] | None = None
    error: str | None = None
    idempotency_key: str | None = None
    created_at: float = Field(default_factory=now)


def retry_delay_seconds(attempt: int, jitter: float) -> float:
    """Exponential back-off: 0.5 s doubling to at most 60 s, scaled by ``jitter`` in [0, 1) to 50-100%."""
    return min(60.0, 0.5 * 2.0 ** max(0, attempt - 1)) * (0.5 + 0.5 * jitter)
