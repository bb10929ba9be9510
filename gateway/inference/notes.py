"""NotingRewriter: what an Experiment must know of an answer of which no content may be kept: reasons and names alone.

The message is put together in memory while the answer passes, looked at once, and dropped with the call.
"""

from typing import Any

import msgspec
import structlog

from core.guardrails import NAN_LOGPROBS
from core.message import Message
from core.turn_events import message_events
from gateway.capture.record import CapturedCall
from gateway.capture.turns import merge_delta
from gateway.inference.request import InferenceRequest, value_of
from gateway.inference.rewrite import AnswerRewriter
from gateway.inference.target import Target

log = structlog.get_logger(__name__)

NO_NUMBER = (b'"logprob":null', b'"logprob": null', b"NaN")
"""How engines write a log-prob that is no number."""
_MOST_BYTES = 4 * 1024 * 1024
"""Of one answer that is remembered; what comes after is not looked at."""
_LONGEST_REASON = 32


class _Choice(msgspec.Struct):
    index: int = 0
    message: dict[str, Any] | None = None
    delta: dict[str, Any] | None = None
    text: str | None = None
    finish_reason: str | None = None


class _Answer(msgspec.Struct):
    choices: list[_Choice] = []


_decode = msgspec.json.Decoder(_Answer).decode


class NotingRewriter(AnswerRewriter):
    """An AnswerRewriter that notes why each choice ended and which bad events its message shows."""

    def __init__(self, target: Target, *, single: bool = False) -> None:
        super().__init__(target, single=single)
        self._noted: dict[int, Message] = {}
        self._reasons: dict[int, str] = {}
        self._no_number = False
        self._size = 0
        self._whole = True

    def answer(self, body: bytes) -> bytes:
        """See ``AnswerRewriter``."""
        seen = super().answer(body)
        self._look(body)
        return seen

    def chunk(self, data: bytes) -> bytes | None:
        """See ``AnswerRewriter``."""
        seen = super().chunk(data)
        self._look(data)
        return seen

    def note(self, call: CapturedCall, request: InferenceRequest) -> None:
        """Write into the record what was noted."""
        call.finish_reasons = self._reasons
        events = {NAN_LOGPROBS} if self._no_number else set()
        # Half of a tool call says nothing.
        if self._whole and call.broken is None:
            tools = value_of(request.fields, "tools") if "tools" in request.fields else None
            for message in self._noted.values():
                events.update(message_events(message, tools))
        call.events = sorted(events)

    def _look(self, data: bytes) -> None:
        self._no_number = self._no_number or any(mark in data for mark in NO_NUMBER)
        self._size += len(data)
        try:
            for choice in _decode(data).choices:
                if choice.finish_reason is not None:
                    self._reasons[choice.index] = choice.finish_reason[:_LONGEST_REASON]
                if self._size > _MOST_BYTES:
                    self._whole = False
                else:
                    self._keep(choice)
        except (msgspec.DecodeError, RecursionError) as error:
            self._whole = False
            log.debug("answer_not_noted", error=str(error))

    def _keep(self, choice: _Choice) -> None:
        if choice.message is not None:
            self._noted[choice.index] = choice.message
        elif choice.delta is not None:
            merge_delta(self._noted.setdefault(choice.index, {}), choice.delta)
        elif choice.text is not None:
            merge_delta(self._noted.setdefault(choice.index, {}), {"content": choice.text})
