"""StoredResponse: one answer of the Responses API, kept so that it can be read and continued."""

from typing import Any

from pydantic import Field

from core.message import Message
from core.noun import Noun, now


class StoredResponse(Noun):
    """A response with what it was made of; the chain of ``ancestors`` before it is the conversation."""

    id: str
    tenant_id: str
    episode_id: str
    """The Episode that a continuation belongs to."""
    previous_response_id: str | None = None
    ancestors: tuple[str, ...] = ()
    """Every response before this one, oldest first; the last is ``previous_response_id``."""
    response: dict[str, Any]
    """The response object as the client got it."""
    input_items: tuple[dict[str, Any], ...] = ()
    """What this request added, each item with an id."""
    messages: tuple[Message, ...] = ()
    """What request and answer added to the chat, exactly as the model was shown it; without instructions."""
    consent: bool = False
    """Its Turns may train."""
    turn_ids: tuple[str, ...] = ()
    """The Turns of its model calls."""
    created_at: float = Field(default_factory=now)
