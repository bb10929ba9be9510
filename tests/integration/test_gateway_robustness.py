"""Every way in which an engine can fail, by its exact bytes: what the client sees, what is retried, what is kept."""

import asyncio
import json
import socket
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import pytest

from tests.gateway_harness import POLICY, QUESTION, Harness, hone_headers, running_gateway
from tests.scripted_server import Peer, Script, Server, scripted

CHAT: dict[str, Any] = {"model": POLICY, "messages": QUESTION, "max_tokens": 20}
PATH = "/v1/chat/completions"
ANSWER = {
    "id": "chatcmpl-1",
    "object": "chat.completion",
    "created": 1,
    "model": "base",
    "prompt_token_ids": [1, 2],
    "choices": [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "four"},
            "finish_reason": "stop",
            "token_ids": [3],
            "logprobs": {"content": [{"token": "four", "logprob": -0.1}]},
        }
    ],
    "usage": {"prompt_tokens": 2, "completion_tokens": 1, "total_tokens": 3},
}
BODY = json.dumps(ANSWER).encode()
SSE = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
CHUNKED = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n"
GARBAGE = b"\x16\x03\x01 this is not HTTP\r\n\r\n"


@dataclass
class RawEngine:
    """A replica that sends exact bytes; stands where the harness expects an engine."""

    server: Server
    adapters: dict[str, str] = field(default_factory=dict)

    @property
    def url(self) -> str:
        """Its base URL."""
        return self.server.url.removesuffix(PATH)

    @property
    def asked(self) -> int:
        """Completion requests that it has read whole."""
        return sum(
            request.startswith(b"POST /v1/chat/completions ")
            for peer in self.server.peers
            for request in peer.requests
        )

    async def stop(self) -> None:
        """Closed by its own block."""


@dataclass
class Engines:
    """A gateway, and replicas made of scripts."""

    harness: Harness
    stack: AsyncExitStack

    async def add(self, name: str, script: Script) -> RawEngine:
        """A replica; the first name in the alphabet is asked first."""
        engine = RawEngine(await self.stack.enter_async_context(scripted(script)))
        self.harness.engines[name] = engine  # type: ignore[assignment]
        await self.harness.deploy(name)
        return engine

    async def open_connections(self) -> int:
        """Connections to engines that are busy or kept, once everything has settled."""
        upstream: Any = self.harness.gateway.upstream
        busy = [name for name in self.harness.engines if self.harness.gateway.routing.in_flight.running(name)]
        assert busy == []
        await asyncio.sleep(0.05)
        return int(upstream.open_connections)

    async def ask(self, *, stream: bool, **more: Any) -> aiohttp.ClientResponse:
        """One request of a key that lets its Turns train."""
        return await self.harness.post(PATH, CHAT | {"stream": stream} | more, key="trainer")


@pytest.fixture
async def engines(fresh_sqlite_url, open_store, make_config) -> AsyncIterator[Engines]:
    """A gateway on SQLite whose engines may be silent for a second, with one retry."""
    store = await open_store(fresh_sqlite_url)
    overrides = {"gateway.request_timeout_seconds": 1.0, "gateway.retries": 1}
    async with running_gateway(store, make_config, overrides) as harness, AsyncExitStack() as stack:
        yield Engines(harness, stack)


def with_length(body: bytes, status: bytes = b"200 OK", *more: bytes) -> bytes:
    """A whole answer."""
    head = [b"HTTP/1.1 " + status, b"content-type: application/json", b"content-length: %d" % len(body), *more]
    return b"\r\n".join([*head, b"", body])


def chunked(data: bytes) -> bytes:
    """One part of a chunked body."""
    return b"%x\r\n%b\r\n" % (len(data), data)


def event(body: Any) -> bytes:
    """One event in a part of its own."""
    return chunked(b"data: " + json.dumps(body).encode() + b"\n\n")


def delta(content: str, token: int, finish: str | None = None) -> bytes:
    """An event of a stream with one token."""
    choice = {
        "index": 0,
        "delta": {"role": "assistant", "content": content},
        "finish_reason": finish,
        "token_ids": [token],
        "logprobs": {"content": [{"token": content, "logprob": -0.1}]},
    }
    shared = {name: ANSWER[name] for name in ("id", "created", "model", "prompt_token_ids")}
    return event(shared | {"object": "chat.completion.chunk", "choices": [choice]})


STREAM = (SSE, delta("fo", 3), delta("ur", 4, "stop"), chunked(b"data: [DONE]\n\n") + b"0\r\n\r\n")


async def healthy(peer: Peer) -> None:
    """Answers whatever is asked, whole or as a stream."""
    while request := await peer.request():
        if request.startswith(b"GET"):
            await peer.send(with_length(b"{}"))
        elif b'"stream":true' in request.replace(b" ", b""):
            await peer.send(*STREAM)
        else:
            await peer.send(with_length(BODY))


def reset(peer: Peer) -> None:
    """Close with RST instead of FIN."""
    opened: socket.socket = peer.writer.get_extra_info("socket")
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    peer.writer.transport.abort()


def dying(*sent: bytes, rst: bool = True) -> Script:
    """Reads a request, sends these bytes, and is gone."""

    async def script(peer: Peer) -> None:
        if await peer.request():
            await peer.send(*sent)
            if rst:
                reset(peer)

    return script


def silent(*sent: bytes) -> Script:
    """Reads a request, sends these bytes, and then nothing."""

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(*sent)
        await peer.gone()

    return script


def dripping(data: bytes, pieces: int) -> Script:
    """Sends an answer in many small pieces."""

    async def script(peer: Peer) -> None:
        while await peer.request():
            size = max(1, len(data) // pieces)
            await peer.send(*(data[at : at + size] for at in range(0, len(data), size)))

    return script


def answering(*answers: bytes) -> Script:
    """Answers every request in the same way."""

    async def script(peer: Peer) -> None:
        while await peer.request():
            await peer.send(*answers)

    return script


async def refusing(peer: Peer) -> None:
    """Closes at once, reading nothing."""
    reset(peer)


@dataclass(frozen=True)
class Failure:
    """A way to fail, and what a client gets."""

    script: Script
    status: int
    code: str
    asked: int = 1
    """Requests that reach a replica that is alone."""
    passes_on: bool = True
    """Another replica is asked, or this one again: the answer has not begun."""


def refusal(status: bytes, message: str, *more: bytes) -> Script:
    """Answers with an error in vLLM's shape."""
    body = {"error": {"message": message, "type": "X", "param": None, "code": int(status[:3])}}
    return answering(with_length(json.dumps(body).encode(), status, *more))


BEFORE_THE_HEAD = {
    "reset at once": Failure(refusing, 503, "engine_unavailable", asked=0),
    "reset before the head": Failure(dying(), 503, "engine_unavailable", asked=2),
    "closed before the head": Failure(dying(rst=False), 503, "engine_unavailable", asked=2),
    "reset inside the head": Failure(dying(b"HTTP/1.1 200 OK\r\ncont"), 503, "engine_unavailable", asked=2),
    "garbage head": Failure(answering(GARBAGE), 503, "engine_unavailable", asked=2),
    "half a head": Failure(answering(b"HTTP/1.1 200 OK\r\n\0: \r\n\r\n"), 502, "engine_error", asked=2),
    "500": Failure(refusal(b"500 Internal Server Error", "no memory"), 502, "engine_error", asked=2),
    "500 without JSON": Failure(answering(with_length(b"<html>", b"500 Oops")), 502, "engine_error", asked=2),
    "503": Failure(refusal(b"503 Service Unavailable", "loading"), 503, "engine_unavailable", asked=2),
    "silence": Failure(silent(), 504, "engine_timeout", passes_on=False),
    "400": Failure(refusal(b"400 Bad Request", "too many tokens"), 400, "invalid_request", passes_on=False),
    "429": Failure(refusal(b"429 Too Many Requests", "busy", b"retry-after: 1"), 429, "rate_limit_exceeded", asked=2),
}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("name", BEFORE_THE_HEAD)
async def test_a_failure_before_an_answer_is_an_openai_error_and_leaves_no_turn(engines: Engines, name, stream):
    """A replica that is alone: status and body are OpenAI's, retries are as allowed, no Turn, no connection left."""
    failure = BEFORE_THE_HEAD[name]
    engine = await engines.add("dep_a", failure.script)
    response = await engines.ask(stream=stream)
    error = (await response.json())["error"]
    assert (response.status, error["code"]) == (failure.status, failure.code), error
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"]
    assert response.headers["content-type"] == "application/json"
    assert ("retry-after" in response.headers) == (response.status in (429, 503))
    assert "x-request-id" in response.headers
    assert engine.asked == failure.asked
    assert engines.harness.gateway.recorder.buffered == 0
    assert engines.harness.gateway.recorder.lost == 0
    labels = {"route": PATH, "model": "", "status": str(failure.status)}
    assert engines.harness.count("hone_requests_total", **labels) == 1
    assert await engines.open_connections() <= 1


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("name", BEFORE_THE_HEAD)
async def test_a_failure_before_an_answer_is_retried_where_it_may_help(engines: Engines, name, stream):
    """With a healthy replica beside it the client notices nothing, unless the request itself was wrong or slow."""
    failure = BEFORE_THE_HEAD[name]
    engine = await engines.add("dep_a", failure.script)
    other = await engines.add("dep_b", healthy)
    response = await engines.ask(stream=stream)
    assert engine.server.peers
    if not failure.passes_on:
        assert (response.status, other.asked) == (failure.status, 0)
        return
    assert response.status == 200, await response.text()
    assert other.asked == 1
    assert engine.asked <= 1
    assert engines.harness.count("hone_engine_retries_total") == 1
    (turn,) = await engines.harness.turns(hone_headers(response)["episode-id"])
    assert (turn.deployment_id, turn.finish_reason, turn.trainable) == ("dep_b", "stop", True)
    assert await engines.open_connections() <= 2


@pytest.mark.parametrize("stream", [False, True])
async def test_a_dead_address_is_replaced_unseen(engines: Engines, stream):
    """A refused connection costs the client nothing while another replica is there, and is 503 when none is."""
    await engines.add("dep_a", healthy)
    engines.harness.engines["dep_a"].server.url = "http://127.0.0.1:9" + PATH  # type: ignore[attr-defined]
    await engines.harness.deploy("dep_a")
    assert (await engines.ask(stream=stream)).status == 503
    other = await engines.add("dep_b", healthy)
    for _ in range(3):
        assert (await engines.ask(stream=stream)).status == 200
    assert other.asked == 3


HEAD_OF_LONGER = with_length(BODY + b" " * 10)
JUST_THE_HEAD = HEAD_OF_LONGER.partition(b"\r\n\r\n")[0] + b"\r\n\r\n"
AFTER_THE_HEAD = {
    "reset after the head": (
        dying(HEAD_OF_LONGER.partition(b"\r\n\r\n")[0] + b"\r\n\r\n"),
        503,
        "engine_unavailable",
    ),
    "reset in the body": (dying(HEAD_OF_LONGER[:-50]), 503, "engine_unavailable"),
    "closed in the body": (dying(HEAD_OF_LONGER[:-5], rst=False), 503, "engine_unavailable"),
    "truncated chunks": (dying(CHUNKED, chunked(BODY), rst=False), 503, "engine_unavailable"),
    "garbage chunks": (dying(CHUNKED, b"zz\r\n", rst=False), 503, "engine_unavailable"),
    "garbage body": (answering(with_length(b"\xff\xfe garbage")), 502, "engine_error"),
    "another shape": (answering(with_length(b'{"choices": 7}')), 502, "engine_error"),
    "nested too deeply": (
        answering(with_length(b'{"odd":' + b"[" * 10**5 + b"]" * 10**5 + b"}")),
        502,
        "engine_error",
    ),
    "empty body": (answering(with_length(b"")), 502, "engine_error"),
    "silent body": (silent(HEAD_OF_LONGER[:-50]), 504, "engine_timeout"),
}


@pytest.mark.parametrize("name", AFTER_THE_HEAD)
async def test_a_whole_answer_that_breaks_off_is_an_error_in_openais_shape(engines: Engines, name):
    """The client gets 502, 503 or 504 and an error body, never half an answer; the connection is not used again."""
    script, status, code = AFTER_THE_HEAD[name]
    await engines.add("dep_a", script)
    response = await engines.ask(stream=False)
    error = (await response.json())["error"]
    assert (response.status, error["code"]) == (status, code), error
    assert engines.harness.gateway.recorder.buffered == 0
    # Of an answer that never came whole nobody can say what gave it.
    labels = {"route": PATH, "model": POLICY if status == 502 else "", "status": str(status)}
    assert engines.harness.count("hone_requests_total", **labels) == 1
    assert await engines.open_connections() <= 1


IN_A_STREAM = {
    "reset after the first event": (dying(SSE, delta("fo", 3)), "engine_error", 1),
    "closed after the first event": (dying(SSE, delta("fo", 3), rst=False), "engine_error", 1),
    "cut inside an event": (dying(SSE, delta("fo", 3), chunked(b'data: {"choi'), rst=False), "engine_error", 1),
    "ended without a mark": (answering(SSE, delta("fo", 3) + b"0\r\n\r\n"), "engine_error", 1),
    "garbage chunks": (dying(SSE, delta("fo", 3), b"zz\r\n", rst=False), "engine_error", 1),
    "silence later": (silent(SSE, delta("fo", 3)), "engine_timeout", 1),
    "an error event": (
        answering(SSE, delta("fo", 3), event({"error": {"message": "no memory", "code": 500}}) + b"0\r\n\r\n"),
        "engine_error",
        1,
    ),
}

KEPT = {"ended without a mark", "an error event"}
"""Whole answers as far as HTTP goes: their connections may be used again."""


BEFORE_THE_FIRST_EVENT = {
    "reset": dying(SSE),
    "closed": dying(SSE, rst=False),
    "ended": answering(SSE + b"0\r\n\r\n"),
}


@pytest.mark.parametrize("name", BEFORE_THE_FIRST_EVENT)
async def test_a_stream_that_breaks_off_before_its_first_event_is_asked_elsewhere(engines: Engines, name):
    """Nothing has been sent yet, so another replica answers and the client sees a whole stream."""
    engine = await engines.add("dep_a", BEFORE_THE_FIRST_EVENT[name])
    other = await engines.add("dep_b", healthy)
    response = await engines.ask(stream=True)
    assert response.status == 200
    assert (await response.text()).rstrip().endswith("data: [DONE]")
    assert (engine.asked, other.asked) == (1, 1)
    assert engines.harness.count("hone_stream_failures_total") == 0


async def test_a_stream_that_never_begins_is_a_timeout(engines: Engines):
    """An engine that sends nothing after its head is not asked again elsewhere: 504, as for a whole answer."""
    engine = await engines.add("dep_a", silent(SSE))
    other = await engines.add("dep_b", healthy)
    response = await engines.ask(stream=True)
    assert (response.status, (await response.json())["error"]["code"]) == (504, "engine_timeout")
    assert (engine.asked, other.asked) == (1, 0)


@pytest.mark.parametrize("name", IN_A_STREAM)
async def test_a_stream_that_breaks_off_ends_with_an_error_event_and_a_marked_turn(engines: Engines, name):
    """What came is passed on and kept, marked and never trained on; the end is OpenAI's error event; no retry."""
    script, code, tokens = IN_A_STREAM[name]
    engine = await engines.add("dep_a", script)
    other = await engines.add("dep_b", healthy)
    response = await engines.ask(stream=True)
    datas = [part.removeprefix("data: ") for part in (await response.text()).strip().split("\n\n")]
    assert response.status == 200
    assert "[DONE]" not in datas
    error = json.loads(datas[-1])["error"]
    assert (error["code"], set(error)) == (code, {"message", "type", "param", "code"})
    assert len(datas) == tokens + 1
    assert (engine.asked, other.asked) == (1, 0)
    turns = await engines.harness.turns(hone_headers(response)["episode-id"])
    assert [(turn.finish_reason, turn.trainable, turn.output_ids) for turn in turns] == (
        [("engine_failed", False, (3,))] if tokens else []
    )
    assert engines.harness.count("hone_stream_failures_total") == 1
    labels = {"route": PATH, "model": POLICY, "status": "599"}
    assert engines.harness.count("hone_requests_total", **labels) == 1
    assert engines.harness.count("hone_streams_in_flight") == 0
    assert await engines.open_connections() == (name in KEPT)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_slow_drip_is_an_answer_like_any_other(engines: Engines, stream):
    """Bytes that come one by one change nothing; the silence that is bounded is that between two of them."""
    whole = b"".join(STREAM) if stream else with_length(BODY)
    await engines.add("dep_a", dripping(whole, 150))
    response = await engines.ask(stream=stream)
    assert response.status == 200
    text = await response.text()
    assert ("[DONE]" in text) == stream
    (turn,) = await engines.harness.turns(hone_headers(response)["episode-id"])
    assert turn.trainable
    assert await engines.open_connections() == 1


@pytest.mark.parametrize(
    ("header", "shown", "asked"), [(b"120", "120", 1), (b"Wed, 21 Oct 2026 07:28:00 GMT", "1", 2)]
)
async def test_a_long_retry_after_is_passed_on_and_obeyed(engines: Engines, header, shown, asked):
    """Who asks for two minutes is not asked again; the client learns how long to wait."""
    engine = await engines.add("dep_a", refusal(b"429 Too Many Requests", "busy", b"retry-after: " + header))
    response = await engines.ask(stream=False)
    assert (response.status, response.headers["retry-after"]) == (429, shown)
    assert (await response.json())["error"]["message"].startswith("busy")
    assert engine.asked == asked


async def test_a_request_that_was_limited_once_is_answered_after_the_time_that_was_asked_for(engines: Engines):
    """A short Retry-After is waited for, and then the same replica answers."""
    times: list[float] = []

    async def script(peer: Peer) -> None:
        while await peer.request():
            times.append(asyncio.get_running_loop().time())
            limited = with_length(b'{"error":{"message":"busy"}}', b"429 Too Many Requests", b"retry-after: 1")
            await peer.send(limited if len(times) == 1 else with_length(BODY))

    await engines.add("dep_a", script)
    assert (await engines.ask(stream=False)).status == 200
    assert len(times) == 2
    assert times[1] - times[0] >= 0.99


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("begun", [False, True])
async def test_a_client_that_leaves_cancels_the_engine(engines: Engines, stream, begun):
    """Before the first byte or in the middle: the engine sees its connection close, and the stream is counted out."""
    left, reached = asyncio.Event(), asyncio.Event()
    head = STREAM[:2] if stream else (with_length(BODY)[:-20],)

    async def script(peer: Peer) -> None:
        await peer.request()
        if begun:
            await peer.send(*head)
        reached.set()
        await peer.gone()
        left.set()

    await engines.add("dep_a", script)
    asking = asyncio.create_task(engines.ask(stream=stream))
    await asyncio.wait_for(reached.wait(), 10)
    await asyncio.sleep(0.1)
    asking.cancel()
    await asyncio.wait_for(left.wait(), 10)
    labels = {"route": PATH, "model": POLICY if begun and stream else "", "status": "499"}
    await until(lambda: engines.harness.count("hone_requests_total", **labels) == 1)
    assert engines.harness.count("hone_streams_in_flight") == 0
    assert await engines.open_connections() == 0


async def test_nothing_is_sent_twice_when_a_kept_connection_dies_with_a_request(engines: Engines):
    """A kept connection that breaks after bytes of an answer came is no stale one: the stream fails, once."""

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(*STREAM)
        if await peer.request():
            await peer.send(SSE, delta("fo", 3))
            reset(peer)

    engine = await engines.add("dep_a", script)
    assert "[DONE]" in await (await engines.ask(stream=True)).text()
    assert "engine_error" in await (await engines.ask(stream=True)).text()
    assert engine.asked == 2


async def until(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    """Wait until ``condition`` holds."""
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.01)
