"""Feedback: what a client says about a Turn or an Episode, perhaps long after it."""

import math
from collections.abc import Iterable
from enum import StrEnum
from typing import Any

from pydantic import Field, StrictBool, StrictFloat, StrictInt, StrictStr

from core.errors import InvalidRequest
from core.message import Message
from core.noun import Noun, now

FeedbackValue = StrictBool | StrictInt | StrictFloat | StrictStr | dict[str, Any]


class FeedbackKind(StrEnum):
    """What the value of a Feedback is."""

    BOOLEAN = "boolean"
    NUMBER = "number"
    COMMENT = "comment"
    DEMONSTRATION = "demonstration"
    """The answer as it should have been: an assistant message."""


class Feedback(Noun):
    """One statement; statements are only ever added, and for reading the latest of a name counts."""

    id: str
    tenant_id: str
    key_id: str
    episode_id: str
    turn_id: str | None = None
    """None: it is about the Episode as a whole."""
    name: str
    """The metric, such as ``thumbs_up``."""
    kind: FeedbackKind
    value: FeedbackValue
    metadata: dict[str, str] = Field(default_factory=dict)
    idempotency_key: str | None = None
    training_granted: bool = False
    """The tenant or the key that sent it grants training; a demonstration trains only then, and only where the
    Turn that it corrects may train as well."""
    created_at: float = Field(default_factory=now)

    @property
    def subject(self) -> str:
        """Id of the Turn or Episode that it is about."""
        return self.turn_id or self.episode_id

    def says_as(self, other: "Feedback") -> bool:
        """Whether both say the same of the same subject, whenever and under whichever id."""
        return self._statement() == other._statement()

    def _statement(self) -> tuple[object, ...]:
        return self.subject, self.name, self.kind, self.value, self.metadata


def read_value(value: FeedbackValue, kind: FeedbackKind | None) -> tuple[FeedbackKind, FeedbackValue]:
    """The kind of a value, inferred where none is given, and the value in that kind's one form.

    A text that is called a demonstration becomes an assistant message. Raises InvalidRequest for a value that is
    not of its kind.
    """
    inferred = _infer_kind(value)
    if kind is FeedbackKind.DEMONSTRATION and isinstance(value, str):
        return kind, {"role": "assistant", "content": value}
    if kind is not None and kind is not inferred:
        raise InvalidRequest(f"the value is a {inferred}, not a {kind}", param="value")
    if inferred is FeedbackKind.DEMONSTRATION and isinstance(value, dict):
        return inferred, _assistant_message(value)
    if isinstance(value, float) and not math.isfinite(value):
        raise InvalidRequest("a number must be finite", param="value")
    return inferred, value


def latest(feedback: Iterable[Feedback]) -> dict[tuple[str, str], Feedback]:
    """(subject, name) → the latest Feedback; among equal times the one with the larger id."""
    found: dict[tuple[str, str], Feedback] = {}
    for one in feedback:
        place = (one.subject, one.name)
        known = found.get(place)
        if known is None or (known.created_at, known.id) <= (one.created_at, one.id):
            found[place] = one
    return found


def _infer_kind(value: FeedbackValue) -> FeedbackKind:
    if isinstance(value, bool):
        return FeedbackKind.BOOLEAN
    if isinstance(value, int | float):
        return FeedbackKind.NUMBER
    return FeedbackKind.COMMENT if isinstance(value, str) else FeedbackKind.DEMONSTRATION


def _assistant_message(value: Message) -> Message:
    message = {"role": "assistant"} | value
    if message["role"] != "assistant" or not (message.get("content") or message.get("tool_calls")):
        raise InvalidRequest(
            "a demonstration is an assistant message with content or tool calls",
            hint='send {"role": "assistant", "content": "…"} or a text with kind "demonstration"',
            param="value",
        )
    return message
