"""What every surface reads from a request's headers, and says in those of an event stream."""

import re
from collections.abc import Mapping
from typing import NamedTuple

from core.errors import InvalidRequest
from gateway.consent import may_train, token_exact
from gateway.http.base import HeaderMap, RawHeader
from serving.variant_choice import Latency

LONGEST_REQUEST_ID = 128
_TURN_ID = re.compile(rb"turn_[0-9a-z]{26}")
EVENT_STREAM: list[RawHeader] = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


class CallHeaders(NamedTuple):
    """What the headers of a model call say of it; see ``gateway.inference.base.Call``."""

    episode_id: str | None
    idempotency_key: str | None
    may_train: bool
    token_exact: bool | None
    compacts: str | None
    latency: Latency | None
    user: str | None


def call_headers(headers: Mapping[bytes, bytes]) -> CallHeaders:
    """What they say of the call; read once for all requests that send the same. Raises InvalidRequest."""
    known = headers.memo if isinstance(headers, HeaderMap) else None
    if isinstance(known, CallHeaders):
        return known
    found = CallHeaders(
        episode_id=header_text(headers, b"x-hone-episode-id"),
        idempotency_key=header_text(headers, b"idempotency-key"),
        may_train=may_train(headers),
        token_exact=token_exact(headers),
        compacts=compacts_of(headers),
        latency=latency_of(headers),
        user=header_text(headers, b"x-hone-user"),
    )
    if isinstance(headers, HeaderMap):
        headers.memo = found
    return found


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


def latency_of(headers: Mapping[bytes, bytes]) -> Latency | None:
    """What ``x-hone-latency`` asks for; None where it is absent. Raises InvalidRequest for another word."""
    value = headers.get(b"x-hone-latency")
    if value is None or value == b"interactive":
        return None if value is None else "interactive"
    if value == b"batch":
        return "batch"
    raise InvalidRequest("'x-hone-latency' must be 'interactive' or 'batch'", param="x-hone-latency")


def compacts_of(headers: Mapping[bytes, bytes]) -> str | None:
    """The Turn that ``x-hone-compacts`` names; None where it is absent. Raises InvalidRequest for no Turn's id."""
    value = headers.get(b"x-hone-compacts")
    if value is None:
        return None
    if _TURN_ID.fullmatch(value) is None:
        raise InvalidRequest(
            "'x-hone-compacts' must be the id of a Turn",
            hint="send what 'x-hone-turn-id' said",
            param="x-hone-compacts",
        )
    return value.decode()
