"""Server-sent events: cut a byte stream into events, wherever the chunks of the network fall.

Source: https://html.spec.whatwg.org/multipage/server-sent-events.html. Engines end lines with LF or CRLF.
"""

import re
from typing import Final

from core.errors import EngineError

MAX_EVENT_BYTES: Final = 8 * 1024 * 1024
"""Longest event: an engine that never ends one must not fill the memory."""
DONE: Final = b"[DONE]"
_END: Final = re.compile(rb"\r?\n\r?\n")
_END_BYTES: Final = 4
_BLANK: Final = b"\n\n"
_CR: Final = b"\r"
_DATA: Final = b"data:"


class EventSplitter:
    """Collects bytes and gives back whole events, each without its closing blank line."""

    __slots__ = ("_rest",)

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """The events that ``data`` completes, in order. Raises EngineError when one exceeds MAX_EVENT_BYTES."""
        rest, buffer, searched = self._rest, data, 0
        if not rest and _CR not in data and data.endswith(_BLANK):
            # Whole events, as engines write them.
            return [event for event in data[: -len(_BLANK)].split(_BLANK) if event]
        if rest:
            # What was searched before is not searched again: many small pieces of a long event stay cheap.
            searched = max(0, len(rest) - _END_BYTES + 1)
            rest += data
            if _END.search(rest, searched) is None:
                self._check_length()
                return []
            buffer = bytes(rest)
            rest.clear()
        events = []
        start = 0
        for end in _END.finditer(buffer, searched):
            if end.start() > start:
                events.append(buffer[start : end.start()])
            start = end.end()
        if start < len(buffer):
            rest += buffer[start:] if start else buffer
            self._check_length()
        return events

    def _check_length(self) -> None:
        if len(self._rest) > MAX_EVENT_BYTES:
            self._rest.clear()
            raise EngineError(f"the engine sent an event of more than {MAX_EVENT_BYTES} bytes")

    @property
    def rest(self) -> bytes:
        """Bytes of an event that has not ended: a stream that closes with some was cut."""
        return bytes(self._rest).strip()


def event_data(event: bytes) -> bytes | None:
    """The data of an event; None for an event without data, such as a comment."""
    if event.startswith(_DATA) and b"\n" not in event:
        return event[len(_DATA) :].strip()
    lines = [line[len(_DATA) :].strip() for line in event.splitlines() if line.startswith(_DATA)]
    return b"\n".join(lines) if lines else None


def with_data(event: bytes, data: bytes) -> bytes:
    """``event``, of any number of lines, with other data; its other fields stay. Ends with its blank line."""
    lines = [line for line in event.splitlines() if line and not line.startswith(_DATA)]
    lines += [b"data: " + line for line in data.splitlines()]
    return b"\n".join(lines) + b"\n\n"


def frame(data: bytes) -> bytes:
    """One event that carries ``data`` (a single line)."""
    return b"data: %b\n\n" % data
