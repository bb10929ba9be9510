"""Tombstone: the proof that something was erased, by ids and counts and without content."""

from enum import StrEnum

from pydantic import Field

from core.noun import Noun, now


class TombstoneSubject(StrEnum):
    """What was erased."""

    EPISODE = "episode"
    TENANT = "tenant"


class Tombstone(Noun):
    """One withdrawal of an Episode, or one erasure of a Tenant."""

    id: str
    tenant_id: str
    subject: TombstoneSubject
    subject_id: str
    counts: dict[str, int] = Field(default_factory=dict)
    """Rows removed by table, and ``blobs``."""
    versions: tuple[str, ...] = ()
    """Labels of the versions that had seen it (``coder@3``)."""
    by: str
    """Id of the key that asked for it."""
    created_at: float = Field(default_factory=now)


class Withdrawal(Noun):
    """An Episode that is gone: it never trains, and nothing of it that comes late is stored."""

    episode_id: str
    tenant_id: str
    tombstone_id: str
    created_at: float = Field(default_factory=now)
