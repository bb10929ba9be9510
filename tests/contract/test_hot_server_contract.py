"""The contract of hot routes: the own protocol class and the ASGI adapter under real uvicorn, with raw clients."""

import asyncio
import json
import random
from collections.abc import AsyncIterator
from functools import partial

import psutil
import pytest
import uvloop

from gateway.http.base import IncomingRequest
from tests.hot_server import HOT, TEXT, RawClient, Serve, echo, hot_server, post, post_chunked

pytestmark = pytest.mark.filterwarnings('ignore:Overriding the "event_loop_policy"')


@pytest.fixture(params=["asyncio", "uvloop"])
def event_loop_policy(request: pytest.FixtureRequest) -> asyncio.AbstractEventLoopPolicy:
    """Both event loops: production runs on uvloop, tools and tests on asyncio's own."""
    return uvloop.EventLoopPolicy() if request.param == "uvloop" else asyncio.DefaultEventLoopPolicy()


@pytest.fixture(params=[True, False], ids=["protocol", "asgi"])
def serve(request: pytest.FixtureRequest) -> Serve:
    """Serves a handler by one of the implementations."""
    return partial(hot_server, own_protocol=request.param)


class Streaming:
    """A handler that streams until it is told to end; what happened to it stands in its fields."""

    def __init__(self, part: bytes = b"part") -> None:
        self.part = part
        self.go_on = asyncio.Event()
        self.begun = asyncio.Event()
        self.ended = asyncio.Event()
        self.left: bool | None = None
        self.cancelled = False

    async def __call__(self, request: IncomingRequest) -> None:
        """Start, write a part, wait, write another, end."""
        try:
            request.start(200, [TEXT])
            request.write(self.part)
            await request.drain()
            self.begun.set()
            await self.go_on.wait()
            request.write(b"last")
            request.end()
            await request.drain()
        except asyncio.CancelledError:
            self.cancelled = True
            if not request.left:
                raise
        finally:
            self.left = request.left
            self.ended.set()


@pytest.fixture
async def streaming() -> AsyncIterator[Streaming]:
    """A streaming handler."""
    handler = Streaming()
    yield handler
    handler.go_on.set()


async def test_requests_one_after_another_share_a_connection(serve: Serve) -> None:
    """A kept connection answers hot and other routes in turn; hot paths with other methods are ASGI's."""
    async with serve(echo) as server:
        client = await server.connect()
        for number in range(5):
            answer = await client.ask(post(b"%d" % number, path=HOT + "?a=b"))
            assert (answer.status, answer.body, answer.headers["x-path"]) == (200, b"%d" % number, HOT)
            assert answer.headers["content-type"] == "text/plain"
            assert "connection" not in answer.headers
            cold = await client.ask(post(b"x", path="/cold"))
            assert cold.body == b"cold POST x"
            get = await client.ask(b"GET /hot HTTP/1.1\r\nHost: a\r\n\r\n")
            assert get.body == b"cold GET "
        assert server.uvicorn.server_state.total_requests == 15
        client.close()


async def test_what_the_handler_sees(serve: Serve) -> None:
    """Header names are lower-case, of a repeated header the last counts, the query is no part of the path."""
    seen: dict[bytes, bytes] = {}
    states: list[bool] = []

    async def handler(request: IncomingRequest) -> None:
        seen.update(request.headers)
        states.append(request.started)
        request.answer(201, [], request.path.encode())
        states.extend((request.started, request.left))

    async with serve(handler) as server:
        client = await server.connect()
        answer = await client.ask(post(b"", "X-A: 1", "x-a: 2", "Authorization: Bearer x", path=HOT + "?q=1"))
        assert (answer.status, answer.body) == (201, HOT.encode())
        client.close()
    assert states == [False, True, False]
    assert seen[b"x-a"] == b"2"
    assert seen[b"authorization"] == b"Bearer x"


@pytest.mark.parametrize("seed", range(6))
async def test_pipelined_requests_are_answered_in_order(serve: Serve, seed: int) -> None:
    """Hot and other requests written at once, cut anywhere, are answered in order, slow or not."""
    generator = random.Random(seed)

    async def handler(request: IncomingRequest) -> None:
        await asyncio.sleep(generator.choice([0, 0, 0.01]))
        if request.body.startswith(b"s"):
            request.start(200, [TEXT])
            request.write(request.body)
            await asyncio.sleep(0)
            request.end()
        else:
            request.answer(200, [TEXT], request.body)

    kinds = [generator.choice(["hot", "stream", "chunked", "cold"]) for _ in range(12)]
    wanted, raw = [], b""
    for number, kind in enumerate(kinds):
        body = kind[:1].encode() + b"%d" % number * generator.choice([1, 1, 3000])
        if kind == "cold":
            raw += post(body, path="/cold")
            wanted.append(b"cold POST " + body)
        else:
            raw += post_chunked(body, b"+") if kind == "chunked" else post(body)
            wanted.append(body + b"+" if kind == "chunked" else body)
    cuts = sorted(generator.sample(range(1, len(raw)), 10)) if seed else []
    async with serve(handler) as server:
        client = await server.connect()
        reading = asyncio.create_task(_bodies(client, len(wanted)))
        for start, end in zip([0, *cuts], [*cuts, len(raw)], strict=True):
            await client.send(raw[start:end])
            await asyncio.sleep(0.002)
        assert await asyncio.wait_for(reading, 20) == wanted
        client.close()


async def _bodies(client: RawClient, count: int) -> list[bytes]:
    return [(await client.answer()).body for _ in range(count)]


async def test_a_body_in_chunks(serve: Serve) -> None:
    """A chunked request body arrives whole, extensions and trailers left out."""
    async with serve(echo) as server:
        client = await server.connect()
        assert (await client.ask(post_chunked(b"abc", b"d" * 5000, b"e"))).body == b"abc" + b"d" * 5000 + b"e"
        raw = b"POST /hot HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n2;x=y\r\nok\r\n0\r\nX-T: 1\r\n\r\n"
        assert (await client.ask(raw)).body == b"ok"
        assert (await client.ask(post(b"next"))).body == b"next"
        client.close()


async def test_a_large_body(serve: Serve) -> None:
    """Megabytes in both directions."""
    body = random.Random(1).randbytes(5_000_000)
    async with serve(echo) as server:
        client = await server.connect()
        for _ in range(2):
            sending = asyncio.create_task(client.send(post(body)))
            assert (await client.answer()).body == body
            await sending
        client.close()


async def test_expect_100_continue(serve: Serve) -> None:
    """A client that waits for leave to send its body gets it, and the real answer afterwards."""
    async with serve(echo) as server:
        client = await server.connect()
        for _ in range(2):
            await client.send(post(b"", "Expect: 100-continue").replace(b"Length: 0", b"Length: 4"))
            assert (await client.head())[0] == 100
            assert (await client.ask(b"body")).body == b"body"
        client.close()


@pytest.mark.parametrize(
    ("raw", "closes"),
    [
        (post(b"a", "Connection: close"), True),
        (post(b"a", version="1.0"), True),
        (post(b"a"), False),
    ],
)
async def test_when_the_connection_is_closed(serve: Serve, raw: bytes, closes: bool) -> None:
    """connection: close and HTTP/1.0 close after the answer, and the answer says so."""
    async with serve(echo) as server:
        client = await server.connect()
        answer = await client.ask(raw)
        assert answer.body == b"a"
        assert (answer.headers.get("connection") == "close") == closes
        if closes:
            assert await client.at_end()
        client.close()


async def test_a_stream_arrives_part_by_part(serve: Serve, streaming: Streaming) -> None:
    """What the handler writes arrives before its end, as chunks, and the connection is kept."""
    async with serve(streaming) as server:
        client = await server.connect()
        await client.send(post())
        status, headers = await client.head()
        assert (status, headers["transfer-encoding"]) == (200, "chunked")
        assert await client.chunk() == b"part"
        streaming.go_on.set()
        assert await client.chunk() == b"last"
        assert await client.chunk() == b""
        assert (await client.ask(post())).chunks == [b"part", b"last"]
        client.close()


@pytest.mark.parametrize("half", [False, True])
async def test_a_client_that_leaves_cancels_a_stream(serve: Serve, streaming: Streaming, half: bool) -> None:
    """A client that closes, or closes its sending side, during a stream: the handler is cancelled and told why."""
    async with serve(streaming) as server:
        client = await server.connect()
        await client.send(post())
        await client.head()
        await streaming.begun.wait()
        if half:
            client.writer.write_eof()
        else:
            client.close()
        await asyncio.wait_for(streaming.ended.wait(), 10)
        assert (streaming.cancelled, streaming.left) == (True, True)
        client.close()


async def test_a_client_that_leaves_before_the_answer(serve: Serve) -> None:
    """A client that closes while the handler works: the handler is cancelled, and answering does no harm."""
    begun, done = asyncio.Event(), asyncio.Event()
    seen: list[bool] = []

    async def handler(request: IncomingRequest) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            seen.append(request.left)
            request.answer(200, [TEXT], b"late")
            done.set()

    async with serve(handler) as server:
        client = await server.connect()
        await client.send(post())
        await begun.wait()
        client.close()
        await asyncio.wait_for(done.wait(), 10)
        assert seen == [True]


async def test_a_client_that_leaves_after_the_answer_cancels_nothing(serve: Serve) -> None:
    """What a handler does after a whole answer is not disturbed by the client's leaving."""
    left, finished = asyncio.Event(), asyncio.Event()

    async def handler(request: IncomingRequest) -> None:
        request.answer(200, [TEXT], b"done")
        await request.drain()
        await left.wait()
        await asyncio.sleep(0.05)
        finished.set()

    async with serve(handler) as server:
        client = await server.connect()
        assert (await client.ask(post())).body == b"done"
        client.close()
        left.set()
        await asyncio.wait_for(finished.wait(), 10)


async def test_a_slow_reader_holds_the_handler(serve: Serve) -> None:
    """A client that does not read makes drain wait: what lies in memory is bounded, and goes on when it reads."""
    part, count = b"x" * 65536, 300
    written = 0

    async def handler(request: IncomingRequest) -> None:
        nonlocal written
        request.start(200, [TEXT])
        for _ in range(count):
            request.write(part)
            await request.drain()
            written += len(part)
        request.end()

    async with serve(handler) as server:
        client = await server.connect(limit=65536, receive_bytes=65536)
        await client.send(post())
        seen = -1
        while seen != written:
            seen = written
            await asyncio.sleep(0.3)
        assert written < len(part) * count
        answer = await client.answer()
        assert len(answer.body) == len(part) * count
        client.close()


async def test_a_slow_reader_that_leaves(serve: Serve) -> None:
    """A handler that waits in drain for a client that leaves is cancelled."""
    done = asyncio.Event()

    async def handler(request: IncomingRequest) -> None:
        request.start(200, [TEXT])
        try:
            while True:
                request.write(b"x" * 65536)
                await request.drain()
                await asyncio.sleep(0)
        except asyncio.CancelledError:
            assert request.left
            done.set()

    async with serve(handler) as server:
        client = await server.connect(limit=65536, receive_bytes=65536)
        await client.send(post())
        await client.head()
        await asyncio.sleep(0.3)
        client.writer.transport.abort()
        await asyncio.wait_for(done.wait(), 10)


async def test_many_idle_streams(serve: Serve, streaming: Streaming) -> None:
    """A thousand streams wait at the same time and all of them end; the memory of each is printed."""
    process = psutil.Process()
    count = 1000

    async with serve(streaming) as server:
        before = process.memory_info().rss
        clients = [await server.connect(limit=4096) for _ in range(count)]
        connected = process.memory_info().rss
        for client in clients:
            await client.send(post())
        for client in clients:
            await client.head()
            assert await client.chunk() == b"part"
        after = process.memory_info().rss
        print(
            f"connection: {(connected - before) / count:.0f} bytes, stream: {(after - connected) / count:.0f} bytes"
        )
        streaming.go_on.set()
        for client in clients:
            assert await client.chunk() == b"last"
            assert await client.chunk() == b""
            client.close()


async def test_a_graceful_stop_finishes_a_stream(serve: Serve, streaming: Streaming) -> None:
    """A server that stops accepts no new connection, ends what is running, and closes idle connections."""
    async with serve(streaming) as server:
        idle, client = await server.connect(), await server.connect()
        assert (await idle.ask(post(b"x", path="/cold"))).status == 200
        await client.send(post())
        await client.head()
        stopping = asyncio.create_task(server.stop())
        assert await idle.at_end()
        assert not stopping.done()
        with pytest.raises(OSError):
            await server.connect()
        assert await client.chunk() == b"part"
        streaming.go_on.set()
        assert await client.chunk() == b"last"
        assert await client.chunk() == b""
        assert await client.at_end()
        await stopping
        assert not streaming.cancelled


async def test_a_stop_that_lasts_too_long_cuts_off(serve: Serve, streaming: Streaming) -> None:
    """After the graceful time a stream is cancelled without a false end mark."""
    async with serve(streaming, timeout_graceful_shutdown=1) as server:
        client = await server.connect()
        await client.send(post())
        await client.head()
        assert await client.chunk() == b"part"
        await server.stop()
        assert (streaming.cancelled, streaming.left) == (True, False)
        assert await client.at_end()


async def test_idle_connections_are_closed(serve: Serve) -> None:
    """A kept connection without a request is closed after uvicorn's keep-alive time, and not before its use."""
    async with serve(echo, timeout_keep_alive=1) as server:
        client = await server.connect()
        for _ in range(3):
            assert (await client.ask(post(b"a"))).body == b"a"
            await asyncio.sleep(0.4)
        assert await asyncio.wait_for(client.at_end(), 10)


async def test_a_crash_before_the_answer(serve: Serve) -> None:
    """An unforeseen exception is an OpenAI error body without its text, and the connection goes on."""

    async def handler(request: IncomingRequest) -> None:
        if request.body == b"crash":
            raise LookupError("secret")
        if request.body != b"silent":
            request.answer(200, [TEXT], b"fine")

    async with serve(handler) as server:
        client = await server.connect()
        for body in (b"crash", b"silent"):
            answer = await client.ask(post(body))
            assert answer.status == 500
            assert json.loads(answer.body)["error"]["code"] == "internal_error"
            assert b"secret" not in answer.body
            assert (await client.ask(post(b"x"))).body == b"fine"
        client.close()


@pytest.mark.parametrize("raises", [True, False])
async def test_a_crash_within_a_stream(serve: Serve, raises: bool) -> None:
    """A stream whose handler fails, or forgets its end, closes the connection without an end mark."""

    async def handler(request: IncomingRequest) -> None:
        request.start(200, [TEXT])
        request.write(b"part")
        await request.drain()
        if raises:
            raise LookupError("secret")

    async with serve(handler) as server:
        client = await server.connect()
        await client.send(post())
        await client.head()
        assert await client.chunk() == b"part"
        assert await client.at_end()


async def test_a_line_break_in_an_answer_header(serve: Serve) -> None:
    """A header value with a line break is refused instead of becoming a header of its own."""

    async def handler(request: IncomingRequest) -> None:
        request.answer(200, [(b"x-a", b"b\r\nset-cookie: c")], b"")

    async with serve(handler) as server:
        client = await server.connect()
        answer = await client.ask(post())
        assert answer.status == 500
        assert "set-cookie" not in answer.headers
        client.close()


async def test_an_answer_is_given_once(serve: Serve) -> None:
    """A second answer to the same request is an error of the handler's and never reaches the client."""

    async def handler(request: IncomingRequest) -> None:
        request.answer(200, [TEXT], b"first")
        with pytest.raises(RuntimeError):
            request.answer(200, [TEXT], b"second")
        with pytest.raises(RuntimeError):
            request.write(b"more")

    async with serve(handler) as server:
        client = await server.connect()
        for _ in range(2):
            assert (await client.ask(post())).body == b"first"
        client.close()


@pytest.mark.parametrize("large", [True, False])
async def test_a_body_that_is_too_long(serve: Serve, large: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A body above the limit, declared or in chunks, is refused in OpenAI's shape, and the connection is closed."""
    monkeypatch.setattr("gateway.asgi.MAX_BODY_BYTES", 1000)
    reached = False

    async def handler(request: IncomingRequest) -> None:
        nonlocal reached
        reached = True

    async with serve(handler, limits={"max_body_bytes": 1000}) as server:
        client = await server.connect()
        raw = post(b"x" * 500_000) if large else post_chunked(*[b"x" * 400] * 50)
        sending = asyncio.create_task(client.send(raw))
        answer = await client.answer()
        assert answer.status == 413
        assert json.loads(answer.body)["error"]["code"] == "request_too_large"
        assert await client.at_end()
        client.close()
        await asyncio.gather(sending, return_exceptions=True)
    assert not reached
