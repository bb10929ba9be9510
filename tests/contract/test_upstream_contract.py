"""The contract of Upstream: the lean client and the aiohttp client before a server that sends exact bytes."""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
import uvloop

from core.config.schema import HoneConfig
from core.errors import EngineError, HoneError
from gateway.upstream.aiohttp_client import AiohttpUpstream
from gateway.upstream.base import Unreachable, Upstream, UpstreamResponse
from gateway.upstream.lean_client import LeanUpstream
from tests.scripted_server import CHUNKED, INTERIM, OK, Peer, answering, once, scripted

pytestmark = pytest.mark.filterwarnings('ignore:Overriding the "event_loop_policy"')
Open = Callable[..., Awaitable[Upstream]]


@pytest.fixture(params=["asyncio", "uvloop"])
def event_loop_policy(request: pytest.FixtureRequest) -> asyncio.AbstractEventLoopPolicy:
    """Both event loops: production runs on uvloop, tools and tests on asyncio's own."""
    return uvloop.EventLoopPolicy() if request.param == "uvloop" else asyncio.DefaultEventLoopPolicy()


@pytest.fixture(params=[LeanUpstream, AiohttpUpstream], ids=["lean", "aiohttp"])
async def open_upstream(
    request: pytest.FixtureRequest, make_config: Callable[..., HoneConfig]
) -> AsyncIterator[Open]:
    """Starts one of the implementations; stopped at the end."""
    started: list[Upstream] = []

    async def start(timeout_seconds: float = 10.0) -> Upstream:
        upstream: Upstream = request.param(config=make_config({"gateway.request_timeout_seconds": timeout_seconds}))
        await upstream.start()
        started.append(upstream)
        return upstream

    yield start
    for upstream in started:
        await upstream.stop()


async def fetch(upstream: Upstream, url: str, body: bytes = b"{}") -> tuple[int, bytes]:
    """Status and body of a POST."""
    async with await upstream.send(b"POST", url, body) as response:
        return response.status, await response.read()


async def parts(response: UpstreamResponse) -> bytes:
    """The whole body, part by part."""
    collected = b""
    while data := await response.next():
        collected += data
    return collected


async def test_a_request_arrives_as_sent(open_upstream: Open) -> None:
    """Method, path with query, host, extra headers and body reach the engine; the answer's headers come back."""
    upstream = await open_upstream()
    async with scripted(answering(b"HTTP/1.1 201 Created\r\nX-Thing: a b\r\ncontent-length: 2\r\n\r\nok")) as server:
        url = server.url + "?a=1"
        async with await upstream.send(b"POST", url, b"body", ((b"x-more", b"yes"),)) as response:
            assert (response.status, response.headers[b"x-thing"]) == (201, b"a b")
            assert await response.read() == b"ok"
        head, _, body = server.peers[0].requests[0].partition(b"\r\n\r\n")
    lines = head.lower().split(b"\r\n")
    assert lines[0] == b"post /v1/chat/completions?a=1 http/1.1"
    host = url.split("/")[2].encode()
    wanted = {b"host: " + host, b"x-more: yes", b"content-length: 4", b"content-type: application/json"}
    assert wanted <= set(lines)
    assert b"accept-encoding: identity" in lines
    assert body == b"body"


async def test_a_get_request_has_no_body(open_upstream: Open) -> None:
    """A GET announces no body."""
    upstream = await open_upstream()
    async with scripted(answering(OK)) as server:
        async with await upstream.send(b"GET", server.url) as response:
            assert await response.read() == b"ok"
        assert b"content-length" not in server.peers[0].requests[0].lower()


async def test_a_connection_is_used_again(open_upstream: Open) -> None:
    """Requests one after another share a connection; requests at the same time do not."""
    upstream = await open_upstream()
    async with scripted(answering(OK)) as server:
        for _ in range(5):
            assert await fetch(upstream, server.url) == (200, b"ok")
        assert len(server.peers) == 1
        await asyncio.gather(*(fetch(upstream, server.url) for _ in range(4)))
        assert len(server.peers) == 4


@pytest.mark.parametrize(
    ("raw", "body"),
    [
        (OK, b"ok"),
        (CHUNKED + b"3\r\nabc\r\n2;name=value\r\nde\r\n0\r\n\r\n", b"abcde"),
        (CHUNKED + b'a;x="y"\r\n0123456789\r\n0\r\nX-Trailer: 1\r\nx-other: 7\r\n\r\n', b"0123456789"),
        (INTERIM + OK, b"ok"),
        (INTERIM * 3 + CHUNKED + b"2\r\nok\r\n0\r\n\r\n", b"ok"),
        (b"HTTP/1.1 200\r\nContent-Length: 0\r\n\r\n", b""),
        (b"HTTP/1.1 204 No Content\r\n\r\n", b""),
        (b"HTTP/1.1 304 Not Modified\r\netag: x\r\n\r\n", b""),
    ],
    ids=["length", "chunked", "trailers", "interim", "interim-chunked", "empty", "204", "304"],
)
@pytest.mark.parametrize("seed", range(4))
async def test_every_framing_survives_every_split(open_upstream: Open, raw: bytes, body: bytes, seed: int) -> None:
    """However an answer is cut into segments, its body is the same and the connection serves the next request."""
    generator = random.Random(seed)
    upstream = await open_upstream()
    cuts = sorted(generator.sample(range(1, len(raw)), min(8, len(raw) - 1))) if seed else []
    pieces = [raw[start:end] for start, end in zip([0, *cuts], [*cuts, len(raw)], strict=True)]
    async with scripted(answering(*pieces)) as server:
        assert (await fetch(upstream, server.url))[1] == body
        async with await upstream.send(b"POST", server.url, b"{}") as response:
            assert await parts(response) == body
            assert await response.next() == b""
        assert len(server.peers) == 1


@pytest.mark.parametrize(
    "head", [b"HTTP/1.1 200 OK\r\n\r\n", b"HTTP/1.0 200 OK\r\n\r\n", b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n"]
)
async def test_a_body_without_length_ends_with_the_connection(open_upstream: Open, head: bytes) -> None:
    """A body that neither length nor chunks delimit ends where the engine closes; the next request goes anew."""
    upstream = await open_upstream()
    async with scripted(once(head, b"a" * 1000, b"b" * 1000)) as server:
        assert await fetch(upstream, server.url) == (200, b"a" * 1000 + b"b" * 1000)
        async with await upstream.send(b"POST", server.url, b"{}") as response:
            assert await parts(response) == b"a" * 1000 + b"b" * 1000
        assert len(server.peers) == 2


@pytest.mark.parametrize(
    "raw",
    [
        b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\nok",
        b"HTTP/1.0 200 OK\r\ncontent-length: 2\r\n\r\nok",
    ],
)
async def test_an_engine_that_closes_is_not_asked_again_there(open_upstream: Open, raw: bytes) -> None:
    """After connection: close, and after HTTP/1.0, the connection is not kept."""
    upstream = await open_upstream()
    async with scripted(once(raw)) as server:
        for _ in range(3):
            assert await fetch(upstream, server.url) == (200, b"ok")
        assert len(server.peers) == 3


@pytest.mark.parametrize("pause", [0.0, 0.05])
async def test_a_kept_connection_that_closed_is_replaced_unseen(open_upstream: Open, pause: float) -> None:
    """An engine that closes a kept connection, before or while the next request is written, costs no answer."""
    upstream = await open_upstream()
    async with scripted(once(OK)) as server:
        for _ in range(4):
            assert await fetch(upstream, server.url) == (200, b"ok")
            await asyncio.sleep(pause)
        assert len(server.peers) == 4


async def test_a_request_is_tried_twice_at_most(open_upstream: Open) -> None:
    """A kept connection that closes on the request is replaced once; a fresh one that closes too is Unreachable."""
    upstream = await open_upstream()

    async def script(peer: Peer) -> None:
        if peer.number == 0:
            await peer.request()
            await peer.send(OK)
        await peer.request()

    async with scripted(script) as server:
        assert await fetch(upstream, server.url) == (200, b"ok")
        with pytest.raises(Unreachable):
            await fetch(upstream, server.url)
        assert [len(peer.requests) for peer in server.peers] == [2, 1]


async def test_an_answer_that_began_is_not_asked_for_again(open_upstream: Open) -> None:
    """Once an engine has begun to answer, its request is not sent a second time."""
    upstream = await open_upstream()

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(OK)
        await peer.request()
        await peer.send(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nab")

    async with scripted(script) as server:
        assert await fetch(upstream, server.url) == (200, b"ok")
        with pytest.raises(Unreachable):
            await fetch(upstream, server.url)
        assert len(server.peers) == 1


async def test_nobody_there_is_unreachable(open_upstream: Open) -> None:
    """A refused connection, an unknown host and an address that is none are Unreachable."""
    upstream = await open_upstream()
    async with scripted(answering(OK)) as server:
        url = server.url
    for wrong in (url, "http://nowhere.invalid/", "ftp://127.0.0.1/"):
        with pytest.raises(Unreachable):
            await upstream.send(b"POST", wrong, b"{}")


@pytest.mark.parametrize("status", [404, 502, 503, 504])
async def test_an_engine_that_is_away_is_unreachable(open_upstream: Open, status: int) -> None:
    """The statuses by which a replica says that it is away become Unreachable."""
    upstream = await open_upstream()
    async with scripted(answering(b"HTTP/1.1 %d X\r\ncontent-length: 2\r\n\r\nno" % status)) as server:
        with pytest.raises(Unreachable):
            await upstream.send(b"POST", server.url, b"{}")


@pytest.mark.parametrize("status", [400, 413, 422, 429, 500])
async def test_other_statuses_are_answers(open_upstream: Open, status: int) -> None:
    """An engine's refusal is an answer with a body, and a redirect is not followed."""
    upstream = await open_upstream()
    async with scripted(answering(b"HTTP/1.1 %d X\r\ncontent-length: 2\r\n\r\nno" % status)) as server:
        assert await fetch(upstream, server.url) == (status, b"no")
        assert len(server.peers) == 1


@pytest.mark.parametrize("raw", [b"SSH-2.0-OpenSSH_9.2\r\n", b"\x00\x01\x02\x03" * 100, b"HTTP/9.9 what\r\n\r\n"])
async def test_garbage_instead_of_a_status_line_is_unreachable(open_upstream: Open, raw: bytes) -> None:
    """A server that does not speak HTTP has answered nothing."""
    upstream = await open_upstream()
    async with scripted(once(raw)) as server:
        with pytest.raises(Unreachable):
            await fetch(upstream, server.url)


@pytest.mark.parametrize(
    "head", [b"HTTP/1.1 200 OK\r\nbad\x00header\r\n\r\n", b"HTTP/1.1 200 OK\r\ncontent-length: x\r\n\r\n"]
)
async def test_garbage_in_the_head_is_an_engine_error(open_upstream: Open, head: bytes) -> None:
    """An engine that began to answer and then sent nonsense has answered wrongly."""
    upstream = await open_upstream()
    async with scripted(once(head)) as server:
        with pytest.raises(EngineError):
            await fetch(upstream, server.url)


async def test_garbage_in_the_body_is_an_error(open_upstream: Open) -> None:
    """Nonsense between two chunks ends the answer with an error, after what came before it."""
    # A short time, because aiohttp does not report what its parser refuses within a body.
    upstream = await open_upstream(0.4)
    async with scripted(answering(CHUNKED + b"3\r\nabc\r\n", b"xyz\r\n")) as server:
        async with await upstream.send(b"POST", server.url, b"{}") as response:
            assert await response.next() == b"abc"
            with pytest.raises(EngineError):
                await parts(response)
        with pytest.raises((Unreachable, HoneError)):
            await fetch(upstream, server.url)


@pytest.mark.parametrize(
    "filler", [b"x-a: " + b"b" * 1000 + b"\r\n", b"b" * 1000], ids=["many-headers", "one-endless-line"]
)
async def test_an_endless_head_is_an_engine_error(open_upstream: Open, filler: bytes) -> None:
    """A head is bounded: an engine that goes on and on is cut off."""
    upstream = await open_upstream()

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(b"HTTP/1.1 200 OK\r\nx-b: ")
        while not peer.writer.is_closing():
            await peer.send(filler)

    async with scripted(script) as server:
        with pytest.raises(EngineError):
            await fetch(upstream, server.url)


@pytest.mark.parametrize(
    "raw", [CHUNKED + b"5\r\nab", CHUNKED + b"2\r\nab\r\n", b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nab"]
)
async def test_a_body_that_breaks_off(open_upstream: Open, raw: bytes) -> None:
    """What arrived is handed out; then a stream is broken, and a whole answer may be had from another replica."""
    upstream = await open_upstream()
    async with scripted(once(raw)) as server:
        async with await upstream.send(b"POST", server.url, b"{}") as response:
            assert await response.next() == b"ab"
            with pytest.raises(EngineError):
                await response.next()
        with pytest.raises(Unreachable):
            await fetch(upstream, server.url)


async def test_a_head_that_breaks_off_is_unreachable(open_upstream: Open) -> None:
    """An engine that dies within the head of its answer has answered nothing."""
    upstream = await open_upstream()
    async with scripted(once(b"HTTP/1.1 200 OK\r\ncontent-le")) as server:
        with pytest.raises(Unreachable):
            await fetch(upstream, server.url)


@pytest.mark.parametrize("before", [b"", b"HTTP/1.1 200 OK\r\nx: ", CHUNKED, CHUNKED + b"2\r\nab\r\n"])
async def test_a_silent_engine_is_given_up(open_upstream: Open, before: bytes) -> None:
    """An engine that says nothing for the configured time is an EngineError that names the key to raise."""
    upstream = await open_upstream(0.2)

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(before)
        await peer.gone()

    async with scripted(script) as server:
        with pytest.raises(EngineError) as caught:
            async with await upstream.send(b"POST", server.url, b"{}") as response:
                await parts(response)
        assert "gateway.request_timeout_seconds" in str(caught.value.hint)
        with pytest.raises(EngineError):
            await fetch(upstream, server.url)


async def test_an_engine_that_keeps_talking_is_not_given_up(open_upstream: Open) -> None:
    """The configured time bounds silence, not the whole answer."""
    upstream = await open_upstream(0.4)

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(CHUNKED)
        for _ in range(12):
            await asyncio.sleep(0.1)
            await peer.send(b"2\r\nab\r\n")
        await peer.send(b"0\r\n\r\n")

    async with scripted(script) as server:
        assert (await fetch(upstream, server.url))[1] == b"ab" * 12


async def test_an_early_answer_is_an_answer(open_upstream: Open) -> None:
    """An engine that refuses before it has read the whole request is heard; its connection is not used again."""
    upstream = await open_upstream()

    async def script(peer: Peer) -> None:
        await peer.reader.readuntil(b"\r\n\r\n")
        await peer.send(b"HTTP/1.1 413 Too Large\r\ncontent-length: 3\r\n\r\nbig")
        await asyncio.sleep(0.2)

    async with scripted(script) as server:
        assert await fetch(upstream, server.url, b"x" * 2**25) == (413, b"big")
        assert await fetch(upstream, server.url, b"x" * 2**25) == (413, b"big")
        assert len(server.peers) == 2


async def test_a_large_body_arrives_whole(open_upstream: Open) -> None:
    """Megabytes pass in both directions."""
    upstream = await open_upstream()
    sent = random.Random(1).randbytes(3_000_000)

    async def script(peer: Peer) -> None:
        while request := await peer.request():
            body = request.partition(b"\r\n\r\n")[2]
            await peer.send(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(body), body)

    async with scripted(script) as server:
        assert (await fetch(upstream, server.url, sent))[1] == sent
        async with await upstream.send(b"POST", server.url, sent) as response:
            assert await parts(response) == sent
        assert len(server.peers) == 1


async def test_a_reader_that_does_not_read_stops_the_engine(open_upstream: Open) -> None:
    """What nobody reads is not taken from the network: the engine blocks, and goes on when reading goes on."""
    upstream = await open_upstream()
    block, count = b"x" * 65536, 400
    written = 0

    async def script(peer: Peer) -> None:
        nonlocal written
        await peer.request()
        await peer.send(CHUNKED)
        for _ in range(count):
            peer.writer.write(b"10000\r\n" + block + b"\r\n")
            await peer.writer.drain()
            written += len(block)
        await peer.send(b"0\r\n\r\n")
        await peer.request()

    async with scripted(script) as server, await upstream.send(b"POST", server.url, b"{}") as response:
        seen = -1
        while seen != written:
            seen = written
            await asyncio.sleep(0.3)
        assert written < len(block) * count
        total = 0
        while data := await response.next():
            assert len(data) <= 2**20
            total += len(data)
        assert total == len(block) * count


@pytest.mark.parametrize("read_first", [True, False])
async def test_leaving_early_closes_the_connection(open_upstream: Open, read_first: bool) -> None:
    """An answer that is closed before its end closes the connection: the engine stops."""
    upstream = await open_upstream()
    stopped = asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.request()
        if peer.number == 0:
            await peer.send(CHUNKED, b"2\r\nab\r\n")
            await peer.gone()
            stopped.set()
        else:
            await peer.send(OK)

    async with scripted(script) as server:
        async with await upstream.send(b"POST", server.url, b"{}") as response:
            if read_first:
                assert await response.next() == b"ab"
        response.close()
        await asyncio.wait_for(stopped.wait(), 10)
        assert await fetch(upstream, server.url) == (200, b"ok")


@pytest.mark.parametrize("phase", ["head", "next", "read"])
async def test_a_cancelled_wait_closes_the_connection(open_upstream: Open, phase: str) -> None:
    """Cancelling a task at any of its waits leaves no connection open and the pool in order."""
    upstream = await open_upstream()
    reached, stopped = asyncio.Event(), asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.request()
        if peer.number:
            await peer.send(OK)
            return
        if phase != "head":
            await peer.send(CHUNKED)
        reached.set()
        await peer.gone()
        stopped.set()

    async def ask(url: str) -> None:
        async with await upstream.send(b"POST", url, b"{}") as response:
            await (response.read() if phase == "read" else response.next())

    async with scripted(script) as server:
        task = asyncio.create_task(ask(server.url))
        await reached.wait()
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.wait_for(stopped.wait(), 10)
        assert await fetch(upstream, server.url) == (200, b"ok")


async def test_cancelling_at_every_step_leaks_nothing(open_upstream: Open) -> None:
    """Whichever turn of the event loop a task is cancelled in, its connection is closed or kept, never lost."""
    upstream = await open_upstream()
    async with scripted(answering(OK)) as server:
        for turns in range(12):
            task = asyncio.create_task(fetch(upstream, server.url))
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        assert await fetch(upstream, server.url) == (200, b"ok")
        await upstream.stop()
        for peer in server.peers:
            await asyncio.wait_for(peer.gone(), 10)


async def test_stopping_ends_running_requests(open_upstream: Open) -> None:
    """A stopped client fails what is under way and refuses what comes later."""
    upstream = await open_upstream()
    reached = asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.request()
        reached.set()
        await peer.gone()

    async with scripted(script) as server:
        task = asyncio.create_task(fetch(upstream, server.url))
        await reached.wait()
        await upstream.stop()
        with pytest.raises((Unreachable, HoneError)):
            await task
        with pytest.raises(HoneError):
            await fetch(upstream, server.url)


async def test_a_line_break_in_a_header_is_refused(open_upstream: Open) -> None:
    """A header value cannot smuggle a second header or request."""
    upstream = await open_upstream()
    async with scripted(answering(OK)) as server:
        with pytest.raises(ValueError):
            await upstream.send(b"POST", server.url, b"{}", ((b"x-a", b"b\r\nx-c: d"),))
        assert not any(peer.requests for peer in server.peers)
