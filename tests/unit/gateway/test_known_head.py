"""Heads that a connection sends again: read without the parser only where that would read the same."""

import pytest

from gateway.http.base import HeaderMap, IncomingRequest
from gateway.http.known_head import KnownHead, learn

HEAD = b"POST /hot HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\nX-One: b\r\n\r\n"
MOST = 1000


def handler(_request: IncomingRequest) -> None:
    """Answers nothing."""


def learned(data: bytes, body: bytes, **more: bytes) -> KnownHead | None:
    """What is remembered of a request that the parser has read."""
    named = {name.encode().replace(b"_", b"-"): value for name, value in more.items()}
    headers = HeaderMap([(b"host", b"a"), (b"content-length", b"%d" % len(body)), *named.items()])
    return learn(data, body, handler=handler, path="/hot", headers=headers)


@pytest.mark.parametrize("body", [b"", b"{}", b"x" * MOST])
def test_the_same_head_with_another_length_is_known(body: bytes) -> None:
    """The body is cut off by its own length, and the headers say that length."""
    known = learned(HEAD % 4 + b"abcd", b"abcd")
    assert known is not None
    assert known.body_of(HEAD % len(body) + body, MOST) == body
    assert known.headers[b"content-length"] == b"%d" % len(body)


@pytest.mark.parametrize(
    "data",
    [
        HEAD % 4 + b"abc",
        HEAD % 4 + b"abcde",
        HEAD % 4 + b"abcd" + HEAD % 4 + b"abcd",
        (HEAD % 4).replace(b"X-One: b", b"X-One: c") + b"abcd",
        (HEAD % 4).replace(b"X-One: b\r\n", b"") + b"abcd",
        (HEAD % 4).replace(b"\r\n\r\n", b"\r\nContent-Length: 5\r\n\r\n") + b"abcd",
        (HEAD % 4).replace(b": 4", b": +4") + b"abcd",
        (HEAD % 4).replace(b": 4", b": 4,4") + b"abcd",
        (HEAD % 4).replace(b": 4", b":  4") + b"abcd",
        (HEAD % 4).replace(b": 4", b": ") + b"abcd",
        (HEAD % 4)[:40],
        HEAD % (MOST + 1) + b"x" * (MOST + 1),
        b"",
    ],
    ids=range(13),
)
def test_anything_else_is_left_to_the_parser(data: bytes) -> None:
    """Other heads, odd lengths, pieces, more than one request, bodies that are too long."""
    known = learned(HEAD % 4 + b"abcd", b"abcd")
    assert known is not None
    assert known.body_of(data, MOST) is None


@pytest.mark.parametrize("name", ["transfer_encoding", "expect", "connection", "upgrade"])
def test_heads_that_change_how_a_request_is_read_are_not_remembered(name: str) -> None:
    """Chunks, expectations, closing and upgrades stay with the parser."""
    assert learned(HEAD % 4 + b"abcd", b"abcd", **{name: b"x"}) is None


def test_a_head_without_one_plain_length_is_not_remembered() -> None:
    """Without a length, or with two of them, there is nothing to go by."""
    twice = (HEAD % 4).replace(b"\r\n\r\n", b"\r\nContent-Length: 4\r\n\r\n")
    assert learned(twice + b"abcd", b"abcd") is None
    assert learned((HEAD % 4).replace(b"Content-Length: 4\r\n", b""), b"") is None
