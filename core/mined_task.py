"""MinedTask: a Task proposed from a recorded Episode, and what became of the proposal."""

from enum import StrEnum

from pydantic import Field

from core.noun import Noun, now
from core.task import Task
from core.transitions import TransitionTable


class MinedStatus(StrEnum):
    """The life of a proposal."""

    PROPOSED = "proposed"
    ACCEPTED = "accepted"
    """The Task is among the others and can be attempted."""
    REJECTED = "rejected"


MINED_TRANSITIONS = TransitionTable(
    "mined task",
    {
        MinedStatus.PROPOSED: frozenset({MinedStatus.ACCEPTED, MinedStatus.REJECTED}),
        MinedStatus.ACCEPTED: frozenset(),
        MinedStatus.REJECTED: frozenset(),
    },
)


class MinedTask(Noun):
    """A proposal; its id is the Task's."""

    id: str
    tenant_id: str
    """Whose Episode it was."""
    episode_id: str
    """Erased with it; the Task carries it in ``metadata`` as well."""
    digest: str
    """Of prompt, files and verifiers: a second proposal with the same one is dropped."""
    judged_by: str
    """Where the verifier comes from: ``tool_outcome``, ``json``, ``demonstration``, ``answer`` or ``rubric``."""
    status: MinedStatus = MinedStatus.PROPOSED
    task: Task
    decided_by: str | None = None
    """Who accepted or rejected it; ``policy``: it was accepted unseen, by configuration."""
    reason: str | None = None
    created_at: float = Field(default_factory=now)
