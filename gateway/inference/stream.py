"""Server-sent events: cut a byte stream into events, wherever the chunks of the network fall.

Source: https://html.spec.whatwg.org/multipage/server-sent-events.html. Engines end lines with LF or CRLF.
"""

import re

_END = re.compile(rb"\r?\n\r?\n")
_DATA = b"data:"
DONE = b"[DONE]"


class EventSplitter:
    """Collects bytes and gives back whole events, each without its closing blank line."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        """The events that ``data`` completes, in order."""
        buffer = self._rest + data if self._rest else data
        events = []
        start = 0
        for end in _END.finditer(buffer):
            if end.start() > start:
                events.append(buffer[start : end.start()])
            start = end.end()
        self._rest = buffer[start:] if start else buffer
        return events

    @property
    def rest(self) -> bytes:
        """Bytes of an event that has not ended: a stream that closes with some was cut."""
        return self._rest.strip()


def event_data(event: bytes) -> bytes | None:
    """The data of an event; None for an event without data, such as a comment."""
    if event.startswith(_DATA) and b"\n" not in event:
        return event[len(_DATA) :].strip()
    lines = [line[len(_DATA) :].strip() for line in event.splitlines() if line.startswith(_DATA)]
    return b"\n".join(lines) if lines else None


def frame(data: bytes) -> bytes:
    """One event that carries ``data`` (a single line)."""
    return b"data: %b\n\n" % data
