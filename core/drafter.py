"""Drafter: a draft model, versioned as the partner of a range of target PolicyVersions."""

from enum import StrEnum

from pydantic import Field

from core.noun import Noun, now
from core.transitions import TransitionTable


class DrafterStatus(StrEnum):
    """The life of a Drafter. Its gate is acceptance and speed, never quality: it cannot change an answer."""

    CANDIDATE = "candidate"
    LIVE = "live"
    RETIRED = "retired"
    REJECTED = "rejected"


DRAFTER_TRANSITIONS = TransitionTable(
    "drafter",
    {
        DrafterStatus.CANDIDATE: frozenset({DrafterStatus.LIVE, DrafterStatus.REJECTED}),
        DrafterStatus.LIVE: frozenset({DrafterStatus.RETIRED}),
        DrafterStatus.RETIRED: frozenset({DrafterStatus.LIVE}),
        DrafterStatus.REJECTED: frozenset(),
    },
)


class Drafter(Noun):
    """A draft model for the ``fast`` replicas of one Policy on one Base. Numbers count up and are never reused."""

    id: str
    base: str
    policy: str | None = None
    """The Policy whose versions it drafts for; None: the Base and whatever has no Drafter of its own."""
    number: int = 1
    path: str
    """An immutable Hugging Face folder; new for every Drafter."""
    checksum: str = ""
    """sha256 over the folder's files (names and bytes, in name order)."""
    status: DrafterStatus = DrafterStatus.CANDIDATE
    reason: str | None = None
    """Why it was rejected or retired, in plain words."""
    target_version: int = 0
    """The PolicyVersion that it was trained for."""
    first_version: int = 0
    last_version: int | None = None
    """Target versions that it has drafted for; None: still does."""
    acceptance: float | None = None
    """Accepted share of draft tokens when it went live: what later acceptance is held against."""
    accepted_per_draft: float | None = None
    """Accepted draft tokens per draft when it went live, the bonus token not counted."""
    speedup: float | None = None
    """Output tokens per second against the standard Variant when it went live."""
    metrics: dict[str, float] = Field(default_factory=dict)
    """What its training measured."""
    created_at: float = Field(default_factory=now)
