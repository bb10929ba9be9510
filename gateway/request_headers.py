"""What every surface reads from a request's headers, and says in those of an event stream."""

from collections.abc import Mapping

from gateway.http.base import RawHeader

LONGEST_REQUEST_ID = 128
EVENT_STREAM: list[RawHeader] = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


def header_text(headers: Mapping[bytes, bytes], name: bytes) -> str | None:
    """A header's value without surrounding space; None where it is absent or empty."""
    value = headers.get(name)
    if value is None:
        return None
    return value.strip().decode("latin-1") or None


def decent_request_id(value: bytes | None) -> str | None:
    """An ``x-request-id`` that may stand in logs and headers; None for any other value."""
    if value is None or not 0 < len(value) <= LONGEST_REQUEST_ID:
        return None
    text = value.decode("latin-1")
    return text if text.isascii() and text.isprintable() else None
