"""Episode: one attempt at one Task, or one recorded client conversation."""

from enum import StrEnum
from typing import Any

from pydantic import Field

from core.noun import Noun, now
from core.transitions import TransitionTable


class EpisodeStatus(StrEnum):
    """The life of an Episode."""

    RUNNING = "running"
    FINISHED = "finished"
    """The agent loop ended and every Turn is durable; not judged yet."""
    SCORED = "scored"
    INVALID = "invalid"
    """Infrastructure failed; the attempt is to be repeated and never trains."""
    EXPIRED = "expired"


EPISODE_TRANSITIONS = TransitionTable(
    "episode",
    {
        EpisodeStatus.RUNNING: frozenset({EpisodeStatus.FINISHED, EpisodeStatus.INVALID, EpisodeStatus.EXPIRED}),
        EpisodeStatus.FINISHED: frozenset({EpisodeStatus.SCORED, EpisodeStatus.INVALID}),
        EpisodeStatus.SCORED: frozenset(),
        EpisodeStatus.INVALID: frozenset(),
        EpisodeStatus.EXPIRED: frozenset(),
    },
)


class StopReason(StrEnum):
    """Why the agent loop ended."""

    ANSWERED = "answered"
    MAX_TURNS = "max_turns"
    TRUNCATED = "truncated"
    """A Turn hit its token limit: leaves the loss, stays in the baseline."""
    TIMED_OUT = "timed_out"
    INFRASTRUCTURE = "infrastructure"


class ToolResult(Noun):
    """What a tool returned to the policy."""

    turn_id: str
    tool: str
    arguments: dict[str, Any]
    output: str
    outcome: str
    """``ok``, ``nonzero``, ``timeout``, ``oom``, ``malformed_call``, … (see ``sandbox/runtimes/base.py``)."""
    seconds: float


class Episode(Noun):
    """One attempt at one Task by one PolicyVersion, or one recorded client conversation (no Task)."""

    id: str
    tenant_id: str
    status: EpisodeStatus = EpisodeStatus.RUNNING
    task_id: str | None = None
    domain: str | None = None
    group_id: str | None = None
    policy: str
    version: int | None = None
    """The pinned PolicyVersion; None for client traffic, whose Turns say what answered."""
    purpose: str = "client"
    """``client``, ``train``, ``evaluate``, ``shadow``."""
    trainable: bool = False
    stop_reason: StopReason | None = None
    turn_ids: tuple[str, ...] = ()
    """Set at the end: the Turns that must be durable before this Episode may train."""
    tool_results: tuple[ToolResult, ...] = ()
    reward: float | None = None
    success: bool | None = None
    error: str | None = None
    metadata: dict[str, Any] = Field(default_factory=dict)
    created_at: float = Field(default_factory=now)
    finished_at: float | None = None


class EpisodeGroup(Noun):
    """Attempts at the same Task by the same PolicyVersion: the unit of group-relative advantages."""

    id: str
    task_id: str
    policy: str
    version: int
    size: int
    """How many attempts were asked for."""
    created_at: float = Field(default_factory=now)
