"""What only the lean client promises: unasked bytes, idle connections, bounded connects, and addresses."""

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from core.config.schema import HoneConfig
from gateway.upstream.base import Unreachable
from gateway.upstream.lean_client import LeanUpstream, target_of
from tests.scripted_server import INTERIM, OK, Peer, answering, scripted


@pytest.fixture
async def upstream(make_config: Callable[..., HoneConfig]) -> AsyncIterator[LeanUpstream]:
    """A started client with a short silence."""
    client = LeanUpstream(config=make_config({"gateway.request_timeout_seconds": 0.4}))
    await client.start()
    yield client
    await client.stop()


async def fetch(upstream: LeanUpstream, url: str) -> tuple[int, bytes]:
    """Status and body of a POST."""
    async with await upstream.send(b"POST", url, b"{}") as response:
        return response.status, await response.read()


async def test_bytes_that_nobody_asked_for_do_not_become_an_answer(upstream: LeanUpstream) -> None:
    """A kept connection on which an engine speaks unasked is dropped, and so is one with a second answer."""
    # aiohttp does not promise this: it hands such bytes to the next request.
    wrong = b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nwrong"

    async def late(peer: Peer) -> None:
        await peer.request()
        await peer.send(OK)
        if peer.number == 0:
            await peer.send(wrong)
        while await peer.request():
            await peer.send(OK)

    async def doubled(peer: Peer) -> None:
        while await peer.request():
            await peer.send(OK + wrong if peer.number == 0 else OK)

    for script in (late, doubled):
        async with scripted(script) as server:
            assert await fetch(upstream, server.url) == (200, b"ok")
            await asyncio.sleep(0.05)
            for _ in range(3):
                assert await fetch(upstream, server.url) == (200, b"ok")
            assert len(server.peers) == 2


async def test_idle_connections_are_closed(upstream: LeanUpstream, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kept connection that nobody has used for the keep-alive time is closed."""
    monkeypatch.setattr("gateway.upstream.lean_client.KEEP_ALIVE_SECONDS", 0.1)
    async with scripted(answering(OK)) as server:
        assert await fetch(upstream, server.url) == (200, b"ok")
        assert upstream.open_connections == 1
        while upstream.open_connections:
            await asyncio.sleep(0.05)


async def test_a_connect_that_hangs_is_unreachable(upstream: LeanUpstream, monkeypatch: pytest.MonkeyPatch) -> None:
    """An address that accepts no connection in time is Unreachable, and nothing of the attempt stays open."""
    monkeypatch.setattr("gateway.upstream.lean_client.CONNECT_SECONDS", 0.1)
    blocked = asyncio.Event()

    async def hang(*_args: object, **_options: object) -> None:
        await blocked.wait()

    monkeypatch.setattr(asyncio.get_running_loop(), "create_connection", hang)
    with pytest.raises(Unreachable, match="accepts no connection"):
        await fetch(upstream, "http://127.0.0.1:9/")
    assert upstream.open_connections == 0


async def test_tls_is_verified(upstream: LeanUpstream) -> None:
    """An https address is spoken to in TLS: a server without it is Unreachable and sees no request."""
    async with scripted(answering(OK)) as server:
        with pytest.raises(Unreachable):
            await fetch(upstream, server.url.replace("http:", "https:"))
        assert not any(peer.requests for peer in server.peers)


async def test_headers_are_those_of_the_answer(upstream: LeanUpstream) -> None:
    """Interim answers and trailers add no headers, names are lower-case, and they can be read after the end."""
    head = INTERIM + b"HTTP/1.1 200 OK\r\nX-One: a\r\nx-one: b\r\nTransfer-Encoding: chunked\r\n\r\n"
    answer = head + b"2\r\nok\r\n0\r\nlate: x\r\n\r\n"

    async def pieces(peer: Peer) -> None:
        while await peer.request():
            await peer.send(answer[:40], answer[40:100], answer[100:])

    for script in (answering(answer), pieces):
        async with scripted(script) as server:
            async with await upstream.send(b"POST", server.url) as first:
                assert await first.read() == b"ok"
            async with await upstream.send(b"POST", server.url) as second:
                assert await second.read() == b"ok"
            for response in (first, second):
                assert response.headers == {b"x-one": b"b", b"transfer-encoding": b"chunked"}
            assert len(server.peers) == 1


async def test_an_answer_to_head_has_no_body(upstream: LeanUpstream) -> None:
    """The length in an answer to HEAD announces nothing: its body is empty."""
    async with (
        scripted(answering(OK.removesuffix(b"ok"))) as server,
        await upstream.send(b"HEAD", server.url) as response,
    ):
        assert (response.status, await response.read()) == (200, b"")


@pytest.mark.parametrize(
    ("url", "key", "path", "host"),
    [
        ("http://engine:8000/v1/x", ("engine", 8000, False), b"/v1/x", b"engine:8000"),
        ("https://engine", ("engine", 443, True), b"/", b"engine"),
        ("http://[::1]:80/a?b=c", ("::1", 80, False), b"/a?b=c", b"[::1]:80"),
        ("http://name:secret@engine/", ("engine", 80, False), b"/", b"engine"),
    ],
)
def test_an_address_is_taken_apart(url: str, key: tuple[str, int, bool], path: bytes, host: bytes) -> None:
    """Host, port and path of a URL; credentials in it are not sent in the host header."""
    assert target_of(url) == (key, path, host)


@pytest.mark.parametrize(
    "url", ["engine:8000", "ftp://engine/", "http:///x", "http://a:b/", "http://a/\r\nx: y", "http://a/b c"]
)
def test_what_is_no_address(url: str) -> None:
    """Anything but a clean absolute http or https URL is Unreachable."""
    with pytest.raises(Unreachable):
        target_of(url)
