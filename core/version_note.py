"""VersionNote: what somebody wrote about a PolicyVersion."""

from pydantic import Field

from core.noun import Noun, now


class VersionNote(Noun):
    """One remark; notes are only ever added."""

    text: str = Field(min_length=1, max_length=4_000)
    by: str
    """Id of the key that wrote it."""
    created_at: float = Field(default_factory=now)
