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


class DraftCounts(Noun):
    """How draft tokens fared on a replica over some time, and how fast it was."""

    drafts: int = 0
    """Speculation steps."""
    draft_tokens: int = 0
    accepted_tokens: int = 0
    output_tokens: int = 0
    """Sampled while requests were being decoded."""
    busy_seconds: float = 0.0
    """Time in which requests were being decoded."""
    request_seconds: float = 0.0
    """The same, times how many there were."""

    def __add__(self, other: "DraftCounts") -> "DraftCounts":
        return DraftCounts(**{name: getattr(self, name) + getattr(other, name) for name in DraftCounts.model_fields})

    @property
    def acceptance(self) -> float:
        """Accepted share of the draft tokens; 0 without any."""
        return self.accepted_tokens / self.draft_tokens if self.draft_tokens else 0.0

    @property
    def accepted_per_draft(self) -> float:
        """Accepted draft tokens per draft, the bonus token not counted; 0 without any."""
        return self.accepted_tokens / self.drafts if self.drafts else 0.0

    @property
    def requests(self) -> float:
        """Requests that were decoded together, on average while there were any."""
        return self.request_seconds / self.busy_seconds if self.busy_seconds else 0.0

    @property
    def tokens_per_second(self) -> float:
        """Output tokens per second while requests were being decoded; 0 when none were."""
        return self.output_tokens / self.busy_seconds if self.busy_seconds else 0.0


class DrafterTrial(Noun):
    """A candidate at work on one replica, held against what the replica drafted with before."""

    deployment_id: str
    before_id: str | None = None
    """The Drafter before; None: the configured folder, or none at all."""
    before: DraftCounts = DraftCounts()
    """How that one fared lately; without drafts: not known."""
    counts: DraftCounts = DraftCounts()
    """How the candidate fares."""
    started_at: float = Field(default_factory=now)


class Drafter(Noun):
    """A draft model for the ``fast`` replicas of one Base. Numbers count up there and are never reused.

    An engine holds one draft model for all that it serves: of one Base, at most one Drafter is live.
    """

    id: str
    base: str
    policy: str | None = None
    """The Policy whose version it was distilled from; None: the Base."""
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
    metrics: dict[str, float] = Field(default_factory=dict)
    """What its training measured."""
    trial: DrafterTrial | None = None
    """Its trial as it stands, or as it ended."""
    created_at: float = Field(default_factory=now)
