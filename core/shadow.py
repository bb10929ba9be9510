"""ShadowPair: one live request answered twice, by what the client got and by a candidate that nobody saw."""

from enum import StrEnum

from pydantic import Field

from core.noun import Noun, now


class ShadowStatus(StrEnum):
    """What came of mirroring a request."""

    SCORED = "scored"
    UNSCORED = "unscored"
    """Both answered; nothing could judge the answers."""
    FAILED = "failed"
    """The candidate did not answer: an error of its own, which counts against it."""
    SKIPPED = "skipped"
    """Not mirrored: ``skipped_because`` says why."""


class ShadowPair(Noun):
    """The same request to the primary and to the candidate; scores in [0, 1], as a verifier or judge gave them."""

    id: str
    experiment_id: str
    policy: str
    domain: str | None = None
    turn_id: str
    """The Turn that the client received."""
    episode_id: str
    status: ShadowStatus
    skipped_because: str | None = None
    primary_arm: str
    candidate_arm: str
    primary_score: float | None = Field(default=None, ge=0.0, le=1.0)
    candidate_score: float | None = Field(default=None, ge=0.0, le=1.0)
    primary_seconds: float | None = None
    candidate_seconds: float | None = None
    primary_tokens: int = 0
    candidate_tokens: int = 0
    primary_events: tuple[str, ...] = ()
    """Bad events of the client's answer, by the same rules."""
    candidate_events: tuple[str, ...] = ()
    """Bad events of the candidate's answer by guardrail name: ``error``, ``invalid_tool_call``, ``refusal``, …"""
    judged_by: str | None = None
    """Verifier or judge, with its version."""
    created_at: float = Field(default_factory=now)

    @property
    def difference(self) -> float | None:
        """Candidate minus primary, in [-1, 1]; a candidate that failed scores 0; None where nothing was judged."""
        if self.primary_score is None:
            return None
        if self.status is ShadowStatus.FAILED:
            return -self.primary_score
        return None if self.candidate_score is None else self.candidate_score - self.primary_score
