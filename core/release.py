"""Release: the life of a PolicyVersion on its way to traffic, and what a release policy requires."""

from enum import StrEnum
from typing import Any

from pydantic import Field

from core.noun import Noun, now
from core.transitions import TransitionTable


class ReleaseStatus(StrEnum):
    """Where a PolicyVersion stands."""

    CANDIDATE = "candidate"
    EVALUATED = "evaluated"
    SHADOWING = "shadowing"
    RAMPING = "ramping"
    PROMOTED = "promoted"
    RETIRED = "retired"
    REJECTED = "rejected"
    ROLLED_BACK = "rolled_back"


_S = ReleaseStatus
RELEASE_TRANSITIONS = TransitionTable(
    "release",
    {
        _S.CANDIDATE: frozenset({_S.EVALUATED, _S.REJECTED, _S.PROMOTED}),
        _S.EVALUATED: frozenset({_S.SHADOWING, _S.RAMPING, _S.PROMOTED, _S.REJECTED}),
        _S.SHADOWING: frozenset({_S.RAMPING, _S.PROMOTED, _S.REJECTED}),
        _S.RAMPING: frozenset({_S.PROMOTED, _S.REJECTED, _S.ROLLED_BACK}),
        _S.PROMOTED: frozenset({_S.RETIRED, _S.ROLLED_BACK}),
        # A rollback brings a retired version back; a rolled-back one may be tried again by an operator, at once or
        # by a new release from the start.
        _S.RETIRED: frozenset({_S.PROMOTED}),
        _S.REJECTED: frozenset(),
        _S.ROLLED_BACK: frozenset({_S.PROMOTED, _S.RETIRED, _S.CANDIDATE}),
    },
)


class ReleaseStep(StrEnum):
    """Evidence that a release policy can require before promotion."""

    EVALUATION = "evaluation"
    SHADOW = "shadow"
    RAMP = "ramp"


RELEASE_POLICIES: dict[str, frozenset[ReleaseStep]] = {
    "default": frozenset(ReleaseStep),
    "demo": frozenset({ReleaseStep.EVALUATION}),
}
"""Required steps by the name of the release policy."""


class Release(Noun):
    """The life of one PolicyVersion; every decision keeps its evidence."""

    id: str
    policy: str
    version: int
    status: ReleaseStatus = ReleaseStatus.CANDIDATE
    evidence: dict[str, Any] = Field(default_factory=dict)
    """Step name → what was measured."""
    missing: tuple[str, ...] = ()
    """Required steps that an operator passed without evidence."""
    reason: str | None = None
    revision: int = 0
    """Grows with each change: two promoters cannot both win."""
    updated_at: float = Field(default_factory=now)
