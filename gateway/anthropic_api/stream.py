"""A chat stream as a message stream: ``message_start``, blocks one after the other, ``message_delta``, stop.

Source: https://docs.anthropic.com/en/docs/build-with-claude/streaming.
"""

from collections.abc import Iterator
from typing import Any

import msgspec

from core import ids
from gateway.anthropic_api.answer import (
    decode_chat,
    reasoning_of,
    signature_of,
    stop_reason_of,
    text_is_object,
    usage_of,
)
from gateway.anthropic_api.fields import Json

_encode = msgspec.json.Encoder().encode


def event(body: Json) -> bytes:
    """One server-sent event, named after its ``type``."""
    return b"event: " + str(body["type"]).encode() + b"\ndata: " + _encode(body) + b"\n\n"


class MessageStream:
    """Converts the chunks of one answer. Blocks never overlap: text that comes inside a call waits for its end."""

    def __init__(self, message_id: str) -> None:
        self._id = message_id
        self._started = False
        self._pinged = False
        self._index = 0
        self._open: str | None = None
        """Type of the open block."""
        self._call: int | None = None
        """Number of the call that is the open block."""
        self._waiting: list[tuple[str, str]] = []
        """What was said while a call was being written."""
        self._waiting_calls: dict[int, Json] = {}
        self._thinking: list[str] = []
        self._arguments: dict[int, list[str]] = {}
        self._choice: Json = {}
        self._usage: Any = None

    def feed(self, data: bytes) -> Iterator[bytes]:
        """The events for one chunk. Raises EngineError when it cannot be read."""
        chunk = decode_chat(data)
        if chunk.get("usage"):
            self._usage = chunk["usage"]
        if not self._started:
            yield from self._start(chunk)
        for choice in chunk.get("choices") or []:
            if choice.get("finish_reason") is not None:
                self._choice = choice
            yield from self._delta(choice.get("delta") or {})

    def end(self) -> Iterator[bytes]:
        """The events after the last chunk."""
        if not self._started:
            yield from self._start({})
        yield from self._close()
        for number in list(self._waiting_calls):
            yield from self._begin_call(number)
            yield from self._close()
        if self._index == 0:
            yield from self._begin({"type": "text", "text": ""})
            yield from self._close()
        complete = [text_is_object("".join(parts)) for parts in self._arguments.values()]
        reason, stop = stop_reason_of(self._choice, complete)
        yield event(
            {
                "type": "message_delta",
                "delta": {"stop_reason": reason, "stop_sequence": stop},
                "usage": usage_of(self._usage),
            }
        )
        yield event({"type": "message_stop"})

    def _start(self, chunk: Json) -> Iterator[bytes]:
        self._started = True
        message: Json = {
            "id": self._id,
            "type": "message",
            "role": "assistant",
            "model": chunk.get("model") or "",
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": usage_of(self._usage),
        }
        yield event({"type": "message_start", "message": message})

    def _delta(self, delta: Json) -> Iterator[bytes]:
        for kind, text in (("thinking", reasoning_of(delta)), ("text", delta.get("content"))):
            if text and self._open == "tool_use":
                self._waiting.append((kind, text))
            elif text:
                yield from self._say(kind, text)
        for call in delta.get("tool_calls") or []:
            yield from self._tool(call)

    def _say(self, kind: str, text: str) -> Iterator[bytes]:
        if self._open != kind:
            yield from self._close()
            start = {"type": kind, kind: ""}
            yield from self._begin(start | {"signature": ""} if kind == "thinking" else start)
        if kind == "thinking":
            self._thinking.append(text)
        yield self._part({"type": f"{kind}_delta", kind: text})

    def _tool(self, call: Json) -> Iterator[bytes]:
        function = call.get("function") or {}
        number = call.get("index")
        number = number if isinstance(number, int) else len(self._arguments)
        arguments = function.get("arguments") or ""
        if number not in self._arguments:
            waiting = self._waiting_calls.setdefault(number, {"id": "", "name": "", "arguments": ""})
            waiting["id"] = waiting["id"] or call.get("id") or ""
            waiting["name"] = waiting["name"] or function.get("name") or ""
            waiting["arguments"] += arguments
        elif self._call == number:
            yield from self._input(number, arguments)
        else:
            # Its block was closed as whole: with more behind it the call is none that can be run.
            self._arguments[number].append(arguments)
        if self._waiting_calls:
            yield from self._next_calls()

    def _next_calls(self) -> Iterator[bytes]:
        """Begin calls that wait, each as soon as the one before it is whole: some providers mix their parts."""
        for number in list(self._waiting_calls):
            written = "" if self._call is None else "".join(self._arguments[self._call])
            busy = self._call is not None and not (written and text_is_object(written))
            if busy or not self._waiting_calls[number]["name"]:
                return
            yield from self._begin_call(number)

    def _begin_call(self, number: int) -> Iterator[bytes]:
        call = self._waiting_calls.pop(number)
        yield from self._close()
        name, call_id = call["name"], call["id"] or ids.new_id("toolu")
        yield from self._begin({"type": "tool_use", "id": call_id, "name": name, "input": {}})
        self._call = number
        self._arguments[number] = []
        yield from self._input(number, call["arguments"])

    def _input(self, number: int, arguments: str) -> Iterator[bytes]:
        if arguments:
            self._arguments[number].append(arguments)
            yield self._part({"type": "input_json_delta", "partial_json": arguments})

    def _begin(self, block: Json) -> Iterator[bytes]:
        self._open = block["type"]
        yield event({"type": "content_block_start", "index": self._index, "content_block": block})
        if not self._pinged:
            self._pinged = True
            yield event({"type": "ping"})

    def _part(self, delta: Json) -> bytes:
        return event({"type": "content_block_delta", "index": self._index, "delta": delta})

    def _close(self) -> Iterator[bytes]:
        if self._open is None:
            return
        if self._open == "thinking":
            yield self._part({"type": "signature_delta", "signature": signature_of("".join(self._thinking))})
            self._thinking.clear()
        yield event({"type": "content_block_stop", "index": self._index})
        self._index += 1
        self._open = self._call = None
        if self._waiting:
            waiting, self._waiting = self._waiting, []
            for kind, text in waiting:
                yield from self._say(kind, text)
            yield from self._close()
