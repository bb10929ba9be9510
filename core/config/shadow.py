"""Keys of shadows: how much a gateway mirrors at once, and what it never mirrors."""

from pydantic import Field

from core.config.section import Section


class ShadowSection(Section):
    """Live requests mirrored to a candidate, off the client's path."""

    concurrency: int = Field(default=2, ge=1, le=64)
    """Mirrored requests that this gateway has in flight at once."""
    queue: int = Field(default=64, ge=1, le=10_000)
    """Requests that wait to be mirrored; more are left out."""
    busy_requests: int = Field(default=16, ge=1)
    """A request is left out when the candidate's least loaded replica is answering so many already."""
    timeout_seconds: float = Field(default=120.0, gt=0)
    """Longest time of a mirrored answer; a candidate that takes longer has failed."""
    most_answer_tokens: int = Field(default=4096, ge=1)
    """Requests with longer answers are left out; also the candidate's limit where a request has none
    and the length of the model's context is known."""
    most_request_bytes: int = Field(default=262_144, ge=1)
    """Larger requests are left out."""
    flush_seconds: float = Field(default=1.0, gt=0)
    """How often pairs and counts are written, and other gateways' spending is read."""
