"""What only the own protocol class promises: bounds, timeouts, and refusals in their place."""

import asyncio
import json
import random

import pytest
import uvloop

from gateway.http.base import IncomingRequest
from tests.hot_server import TEXT, echo, hot_server, post, post_chunked

pytestmark = pytest.mark.filterwarnings('ignore:Overriding the "event_loop_policy"')
HEAD = b"POST /hot HTTP/1.1\r\nHost: a\r\n"
SMUGGLED = [
    HEAD + b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /cold HTTP/1.1\r\nHost: a\r\n\r\n",
    HEAD + b"Transfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n0\r\n\r\nGET /cold HTTP/1.1\r\nHost: a\r\n\r\n",
    HEAD + b"Content-Length: 4\r\nContent-Length: 5\r\n\r\nabcde",
    HEAD + b"Content-Length: +4\r\n\r\nabcd",
    HEAD + b"Content-Length: 4,4\r\n\r\nabcd",
    HEAD + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
    HEAD + b"Transfer-Encoding: chunked, gzip\r\n\r\n0\r\n\r\n",
    HEAD + b"Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
    HEAD + b"Content-Length: 4\r\n X: folded\r\n\r\nabcd",
    HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\nab\r\n0\r\n\r\n",
    HEAD + b"Transfer-Encoding: chunked\r\n\r\n2\r\nabc\r\n0\r\n\r\n",
    b"POST /hot HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    b"POST /hot HTTP/1.1\nHost: a\n\nabc",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
]


@pytest.fixture(params=["asyncio", "uvloop"])
def event_loop_policy(request: pytest.FixtureRequest) -> asyncio.AbstractEventLoopPolicy:
    """Both event loops: production runs on uvloop, tools and tests on asyncio's own."""
    return uvloop.EventLoopPolicy() if request.param == "uvloop" else asyncio.DefaultEventLoopPolicy()


def error_code(body: bytes) -> str:
    """The code of an OpenAI error body."""
    return str(json.loads(body)["error"]["code"])


@pytest.mark.parametrize("raw", SMUGGLED, ids=range(len(SMUGGLED)))
async def test_an_ambiguous_request_is_refused_and_nothing_after_it_is_read(raw: bytes) -> None:
    """A request that two parsers could cut differently gets 400 and a closed connection, and only that."""
    async with hot_server(echo, own_protocol=True) as server:
        client = await server.connect()
        await client.send(raw + post(b"after"))
        answer = await client.answer()
        assert (answer.status, error_code(answer.body)) == (400, "invalid_request")
        assert answer.headers["connection"] == "close"
        assert await client.at_end()
        client.close()


@pytest.mark.parametrize(
    "raw",
    [
        HEAD + b"".join(b"x-%d: a\r\n" % number for number in range(101)) + b"\r\n",
        HEAD + b"x: " + b"a" * 70_000 + b"\r\n\r\n",
        b"POST /hot?" + b"a" * 70_000 + b" HTTP/1.1\r\nHost: a\r\n\r\n",
        HEAD + b"x: " + b"a" * 400_000,
        b"GET /cold HTTP/1.1\r\n" + b"x: a\r\n" * 200 + b"\r\n",
    ],
    ids=["many", "long", "url", "endless", "asgi"],
)
async def test_a_head_that_is_too_large(raw: bytes) -> None:
    """Too many headers, or too many bytes of them, are refused with 431, on hot and other routes."""
    async with hot_server(echo, own_protocol=True) as server:
        client = await server.connect()
        sending = asyncio.create_task(client.send(raw))
        answer = await client.answer()
        assert (answer.status, error_code(answer.body)) == (431, "request_headers_too_large")
        assert await client.at_end()
        client.close()
        await asyncio.gather(sending, return_exceptions=True)


@pytest.mark.parametrize(
    "raw", [b"POST /ho", HEAD + b"Content-Le", HEAD + b"Content-Length: 5000\r\n\r\nab", b"GET /cold HTTP/1.1\r\n"]
)
async def test_a_request_that_never_ends(raw: bytes) -> None:
    """A request that has not arrived in the configured time gets 408; a byte now and then does not help."""
    async with hot_server(echo, own_protocol=True, limits={"request_read_seconds": 0.3}) as server:
        client = await server.connect()
        assert (await client.ask(post(b"a"))).body == b"a"
        await client.send(raw)
        answer = asyncio.create_task(client.answer())
        while not answer.done():
            await client.send(b"a")
            await asyncio.sleep(0.1)
        assert (answer.result().status, error_code(answer.result().body)) == (408, "request_timeout")
        client.close()


async def test_a_connection_without_a_request_is_closed() -> None:
    """A client that connects and says nothing is not kept for ever."""
    async with hot_server(echo, own_protocol=True, limits={"request_read_seconds": 0.3}) as server:
        client = await server.connect()
        assert await asyncio.wait_for(client.at_end(), 10)


async def test_a_slow_request_within_the_time_is_answered() -> None:
    """A request in many pieces is answered as long as it arrives in time, and its timer ends with it."""

    async def handler(request: IncomingRequest) -> None:
        await asyncio.sleep(0.6)
        request.answer(200, [TEXT], request.body)

    async with hot_server(handler, own_protocol=True, limits={"request_read_seconds": 0.5}) as server:
        client = await server.connect()
        raw = post(b"abcdef")
        for start in range(0, len(raw), 10):
            await client.send(raw[start : start + 10])
            await asyncio.sleep(0.01)
        assert (await client.answer()).body == b"abcdef"
        client.close()


@pytest.mark.parametrize(
    ("bad", "status"),
    [(b"garbage\r\n\r\n", 400), (HEAD + b"x: a\r\n" * 200 + b"\r\n", 431), (post(b"x" * 2000), 413)],
)
@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("path", ["/hot", "/cold"])
async def test_a_refusal_waits_for_its_turn(bad: bytes, status: int, stream: bool, path: str) -> None:
    """A bad request behind good ones is refused after they are answered, never in the middle of an answer."""

    async def handler(request: IncomingRequest) -> None:
        await asyncio.sleep(0.05)
        if stream:
            request.start(200, [TEXT])
            request.write(request.body)
            await asyncio.sleep(0.05)
            request.end()
        else:
            request.answer(200, [TEXT], request.body)

    async with hot_server(handler, own_protocol=True, limits={"max_body_bytes": 1000}) as server:
        client = await server.connect()
        await client.send(post(b"one") + post(b"two", path=path) + bad)
        assert (await client.answer()).body == b"one"
        assert (await client.answer()).body.endswith(b"two")
        assert (await client.answer()).status == status
        assert await client.at_end()
        client.close()


@pytest.mark.parametrize("running", [True, False])
async def test_a_body_that_goes_wrong(running: bool) -> None:
    """Garbage within a body refuses that very request, whether it waits for its turn or not."""

    async def handler(request: IncomingRequest) -> None:
        await asyncio.sleep(0.05)
        request.answer(200, [TEXT], request.body)

    async with hot_server(handler, own_protocol=True) as server:
        client = await server.connect()
        wrong = post_chunked(b"abc").replace(b"0\r\n\r\n", b"zz\r\n")
        await client.send((post(b"one") if running else b"") + wrong)
        if running:
            assert (await client.answer()).body == b"one"
        answer = await client.answer()
        assert (answer.status, error_code(answer.body)) == (400, "invalid_request")
        assert await client.at_end()
        client.close()


async def test_a_refused_body_is_not_asked_for() -> None:
    """A client that asks before it sends a body that is too long is told so instead of being told to go on."""
    async with hot_server(echo, own_protocol=True, limits={"max_body_bytes": 10}) as server:
        client = await server.connect()
        answer = await client.ask(HEAD + b"Content-Length: 11\r\nExpect: 100-continue\r\n\r\n")
        assert answer.status == 413
        client.close()


async def test_leave_to_send_waits_for_its_turn() -> None:
    """A queued request's 100 Continue comes after the answers before it."""

    async def handler(request: IncomingRequest) -> None:
        await asyncio.sleep(0.05)
        request.answer(200, [TEXT], request.body)

    async with hot_server(handler, own_protocol=True) as server:
        client = await server.connect()
        await client.send(post(b"one") + HEAD + b"Content-Length: 3\r\nExpect: 100-continue\r\n\r\n")
        assert (await client.answer()).body == b"one"
        assert (await client.head())[0] == 100
        assert (await client.ask(b"two")).body == b"two"
        client.close()


async def test_a_stream_for_an_old_client_ends_with_the_connection() -> None:
    """HTTP/1.0 knows no chunks: a stream's parts come bare and the connection ends it."""

    async def handler(request: IncomingRequest) -> None:
        request.start(200, [TEXT])
        request.write(b"one")
        request.write(b"two")
        request.end()

    async with hot_server(handler, own_protocol=True) as server:
        client = await server.connect()
        answer = await client.ask(post(version="1.0"))
        assert answer.body == b"onetwo"
        assert "transfer-encoding" not in answer.headers


async def test_too_many_requests_at_once() -> None:
    """uvicorn's limit of concurrent requests holds for hot routes: 503 in OpenAI's shape."""
    async with hot_server(echo, own_protocol=True, limit_concurrency=2) as server:
        first, second = await server.connect(), await server.connect()
        answer = await second.ask(post(b"a"))
        assert answer.status == 503
        assert error_code(answer.body)
        first.close()
        second.close()


@pytest.mark.parametrize(
    ("raw", "status"),
    [
        (b"garbage\r\n\r\n", 400),
        (b"POST /ho", 408),
        (post(b"x" * 2000), 413),
        (HEAD + b"x: a\r\n" * 200 + b"\r\n", 431),
        (b"GET /cold HTTP/1.1\r\n" + b"x: a\r\n" * 200 + b"\r\n", 431),
    ],
)
async def test_refusals_are_told_and_named(raw: bytes, status: int) -> None:
    """Every refusal carries a request id and is told to whoever counts, once; answers of handlers are not."""
    refused: list[int] = []
    limits = {"max_body_bytes": 1000, "request_read_seconds": 0.3, "on_refused": refused.append}
    async with hot_server(echo, own_protocol=True, limits=limits) as server:
        client = await server.connect()
        assert (await client.ask(post(b"a"))).body == b"a"
        assert refused == []
        answer = await client.ask(raw)
        assert (answer.status, refused) == (status, [status])
        assert answer.headers["x-request-id"].startswith("req_")
        client.close()
    assert refused == [status]


async def test_a_head_in_pieces_has_the_same_bound() -> None:
    """Pieces that are short by themselves do not make a long head short; a long body does not make a head long."""
    header = b"x-%d: " + b"a" * 30_000 + b"\r\n"
    async with hot_server(echo, own_protocol=True) as server:
        client = await server.connect()
        assert (await client.ask(post(b"b" * 200_000))).body == b"b" * 200_000
        for piece in (HEAD + header % 1, header % 2, header % 3 + b"Content-Length: 0\r\n\r\n"):
            await client.send(piece)
            await asyncio.sleep(0.05)
        assert (await client.answer()).status == 431
        client.close()


async def test_a_server_without_headers_of_its_own() -> None:
    """An answer is whole HTTP also where uvicorn adds neither date nor server."""
    async with hot_server(echo, own_protocol=True, server_header=False, date_header=False) as server:
        client = await server.connect()
        for _ in range(2):
            answer = await client.ask(post(b"abc"))
            assert (answer.status, answer.body) == (200, b"abc")
            assert set(answer.headers) == {"content-type", "x-path", "content-length"}
        client.close()


async def test_a_client_that_leaves_before_the_handler_begins() -> None:
    """A request whose client is gone before its handler's first step is dropped, and nothing waits for it."""
    begun: list[IncomingRequest] = []

    async def handler(request: IncomingRequest) -> None:
        begun.append(request)
        request.answer(200, [TEXT], b"")

    async with hot_server(handler, own_protocol=True) as server:
        client = await server.connect()
        assert (await client.ask(post(b"a"))).status == 200
        (protocol,) = server.uvicorn.server_state.connections
        protocol.data_received(post(b"b"))
        protocol.connection_lost(None)
        assert len(server.uvicorn.server_state.tasks) == 1
        await asyncio.sleep(0.05)
        assert len(begun) == 1
        assert not server.uvicorn.server_state.tasks
        client.close()


@pytest.mark.parametrize("seed", range(12))
async def test_no_bytes_bring_the_protocol_down(seed: int) -> None:
    """Requests with bytes changed, lost or doubled, cut anywhere: answers or a closed connection, never a crash."""
    generator = random.Random(seed)
    faults: list[str] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: faults.append(repr(context)))

    async def handler(request: IncomingRequest) -> None:
        await asyncio.sleep(generator.choice([0, 0, 0.005]))
        request.start(200, [TEXT])
        request.write(request.body)
        request.end()

    good = [
        post(b"one"),
        post_chunked(b"two", b"three"),
        post(b"four", path="/cold"),
        post_chunked(b"five", path="/cold"),
        post(b"", "Expect: 100-continue"),
        b"GET /hot HTTP/1.1\r\nHost: a\r\n\r\n",
        b"GET /cold HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n",
    ]
    async with hot_server(handler, own_protocol=True, limits={"request_read_seconds": 0.2}) as server:
        for _ in range(5):
            raw = bytearray(b"".join(generator.choices(good, k=6)))
            for _ in range(generator.choice([0, 1, 3])):
                place = generator.randrange(len(raw))
                raw[place : place + generator.choice([0, 1, 2])] = generator.randbytes(generator.choice([0, 1, 5]))
            client = await server.connect()
            reading = asyncio.create_task(client.reader.read())
            try:
                while raw:
                    size = generator.randrange(1, 200)
                    await client.send(bytes(raw[:size]))
                    del raw[:size]
                    await asyncio.sleep(0)
                await asyncio.sleep(generator.choice([0, 0.02, 0.25]))
                if generator.random() < 0.8:
                    client.writer.write_eof()
                else:
                    client.writer.transport.abort()
            except OSError:
                pass
            (ending,) = await asyncio.gather(asyncio.wait_for(reading, 10), return_exceptions=True)
            assert not isinstance(ending, TimeoutError)
            client.close()
        fresh = await server.connect()
        assert (await fresh.ask(post(b"still there"))).body == b"still there"
        fresh.close()
    assert faults == []
