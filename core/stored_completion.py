"""StoredCompletion: a chat completion that the API may return later, as the client saw it."""

from typing import Any

from pydantic import Field

from core.errors import InvalidRequest
from core.noun import Noun, now

MOST_PAIRS = 16
LONGEST_KEY = 64
LONGEST_VALUE = 512


class StoredCompletion(Noun):
    """A chat completion whose request said ``store: true``. What was asked is kept beside it, not in it."""

    tenant_id: str
    id: str
    """As the client saw it, such as ``chatcmpl-…``: unique within the Tenant."""
    model: str
    """The public name of what answered, such as ``coder@17``."""
    asked_model: str
    """The name in the request, such as ``coder``."""
    episode_id: str
    turn_ids: tuple[str, ...]
    consent: bool = False
    """The Turns may train: they stay, without being shown, when the completion is deleted."""
    completion: dict[str, Any]
    """The ``chat.completion`` object without its metadata."""
    metadata: dict[str, str] = Field(default_factory=dict)
    created_at: float = Field(default_factory=now)
    """When the request came: the order of lists."""

    def shown(self) -> dict[str, Any]:
        """The object as the API returns it."""
        return {**self.completion, "metadata": self.metadata}


def check_metadata(value: object) -> dict[str, str]:
    """``metadata`` of a request within the bounds of the OpenAI API; null means none.

    At most 16 pairs, keys of at most 64 characters, values of at most 512. Raises InvalidRequest. Source: OpenAI
    API, ``metadata``.
    """
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise InvalidRequest("'metadata' must be an object of strings", param="metadata")
    if len(value) > MOST_PAIRS:
        raise InvalidRequest(f"'metadata' has {len(value)} pairs; at most {MOST_PAIRS} are kept", param="metadata")
    for key, text in value.items():
        _check_text("a key", key, LONGEST_KEY)
        _check_text(f"the value of '{key}'", text, LONGEST_VALUE)
    return dict(value)


def _check_text(what: str, text: object, longest: int) -> None:
    if not isinstance(text, str):
        raise InvalidRequest(f"{what} in 'metadata' must be a string", param="metadata")
    if len(text) > longest:
        raise InvalidRequest(f"{what} in 'metadata' is longer than {longest} characters", param="metadata")
    if "\0" in text or not _is_utf8(text):
        raise InvalidRequest(f"{what} in 'metadata' holds a character that cannot be stored", param="metadata")


def _is_utf8(text: str) -> bool:
    """Whether it has no lone surrogates, which JSON can say and UTF-8 cannot."""
    return not any("\ud800" <= character <= "\udfff" for character in text)
