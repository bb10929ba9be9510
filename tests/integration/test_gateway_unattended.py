"""Requests that are answered without a task, on a kept connection: every failure ends as it does with one."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import aiohttp
import pytest

from gateway.openai_api import endpoint
from tests.gateway_harness import POLICY, hone_headers, running_gateway
from tests.integration.test_gateway_robustness import (
    AFTER_THE_HEAD,
    BEFORE_THE_FIRST_EVENT,
    BEFORE_THE_HEAD,
    CHAT,
    IN_A_STREAM,
    SSE,
    Engines,
    answering,
    delta,
    healthy,
    silent,
    with_length,
)
from tests.integration.test_gateway_robustness import BODY as ANSWER
from tests.integration.test_gateway_robustness import PATH as CHAT_PATH
from tests.scripted_server import Peer, Script

RETRIED_ONCE = {"reset before the head", "closed before the head", "garbage head"}
"""A kept connection that brings nothing is replaced, and the new one is asked."""


@pytest.fixture
async def engines(fresh_sqlite_url, open_store, make_config) -> AsyncIterator[Engines]:
    """A gateway on SQLite whose engines may be silent for a second, without retries."""
    store = await open_store(fresh_sqlite_url)
    overrides = {"gateway.request_timeout_seconds": 1.0, "gateway.retries": 0}
    async with running_gateway(store, make_config, overrides) as harness, AsyncExitStack() as stack:
        yield Engines(harness, stack)


@pytest.fixture
def unattended(monkeypatch) -> list[object]:
    """The requests that began without a task."""
    begun: list[object] = []
    real = endpoint._Unattended.wait_for

    def wait_for(self, response) -> None:
        begun.append(self)
        real(self, response)

    monkeypatch.setattr(endpoint._Unattended, "wait_for", wait_for)
    return begun


def second(script: Script) -> Script:
    """A replica whose connections answer one request well, and then do as ``script`` does."""

    async def warmed(peer: Peer) -> None:
        if await peer.request():
            await peer.send(with_length(ANSWER))
            await script(peer)

    return warmed


async def warm(engines: Engines, script: Script) -> None:
    """Add the replica and have one connection to it kept."""
    await engines.add("dep_a", second(script))
    assert (await engines.ask(stream=False)).status == 200
    await engines.harness.gateway.recorder.flush(10)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("name", sorted(BEFORE_THE_HEAD.keys() - RETRIED_ONCE - {"reset at once"}))
async def test_a_failure_before_an_answer(engines: Engines, unattended, name, stream):
    """It is handed to the ordinary way, and the client gets the status and the error of that."""
    failure = BEFORE_THE_HEAD[name]
    await warm(engines, failure.script)
    response = await engines.ask(stream=stream)
    error = (await response.json())["error"]
    assert len(unattended) == 1
    assert (response.status, error["code"]) == (failure.status, failure.code), error
    assert engines.harness.gateway.recorder.buffered == 0
    labels = {"route": CHAT_PATH, "model": "", "status": str(failure.status)}
    assert engines.harness.count("hone_requests_total", **labels) == 1
    assert await engines.open_connections() <= 1


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("name", sorted(RETRIED_ONCE - {"garbage head"}))
async def test_a_kept_connection_that_was_closed_is_replaced_unseen(engines: Engines, unattended, name, stream):
    """The engine closed it between two requests, as far as anybody can tell; the next connection answers."""
    await warm(engines, BEFORE_THE_HEAD[name].script)
    response = await engines.ask(stream=stream)
    assert len(unattended) == 1
    assert response.status == 200


@pytest.mark.parametrize("name", AFTER_THE_HEAD)
async def test_a_whole_answer_that_breaks_off(engines: Engines, unattended, name):
    """The client gets an error body, never half an answer; the connection is not used again."""
    script, status, code = AFTER_THE_HEAD[name]
    await warm(engines, script)
    response = await engines.ask(stream=False)
    error = (await response.json())["error"]
    assert len(unattended) == 1
    assert (response.status, error["code"]) == (status, code), error
    assert engines.harness.gateway.recorder.buffered == 0
    labels = {"route": CHAT_PATH, "model": POLICY if status == 502 else "", "status": str(status)}
    assert engines.harness.count("hone_requests_total", **labels) == 1
    assert await engines.open_connections() <= 1


@pytest.mark.parametrize("name", BEFORE_THE_FIRST_EVENT)
async def test_a_stream_that_breaks_off_before_its_first_event(engines: Engines, unattended, name):
    """Nothing has been sent yet, so another replica answers."""
    await warm(engines, BEFORE_THE_FIRST_EVENT[name])
    await engines.add("dep_b", healthy)
    response = await engines.ask(stream=True)
    assert response.status == 200
    assert (await response.text()).rstrip().endswith("data: [DONE]")


@pytest.mark.parametrize("name", IN_A_STREAM)
async def test_a_stream_that_breaks_off(engines: Engines, unattended, name):
    """What came is passed on and kept, and the end is an error event."""
    script, code, tokens = IN_A_STREAM[name]
    await warm(engines, script)
    response = await engines.ask(stream=True)
    datas = [part.removeprefix("data: ") for part in (await response.text()).strip().split("\n\n")]
    assert len(unattended) == 1
    assert response.status == 200
    assert json.loads(datas[-1])["error"]["code"] == code
    assert len(datas) == tokens + 1
    (turn,) = await engines.harness.turns(hone_headers(response)["episode-id"])
    assert (turn.finish_reason, turn.trainable, turn.output_ids) == ("engine_failed", False, (3,))
    assert engines.harness.count("hone_stream_failures_total") == 1
    assert engines.harness.count("hone_requests_total", route=CHAT_PATH, model=POLICY, status="599") == 1
    assert engines.harness.count("hone_streams_in_flight") == 0


@pytest.mark.parametrize("tail", ["with the mark", "later", "never"])
async def test_a_stream_is_kept_whole_and_its_connection_used_again(engines: Engines, unattended, tail):
    """The bytes after the end mark may come with it or later; without them the connection is closed."""
    mark, rest = b"e\r\ndata: [DONE]\n\n\r\n", b"0\r\n\r\n"

    async def script(peer: Peer) -> None:
        while await peer.request():
            await peer.send(
                SSE, delta("fo", 3), delta("ur", 4, "stop"), mark + (rest if tail == "with the mark" else b"")
            )
            if tail == "later":
                await asyncio.sleep(0.1)
                await peer.send(rest)
            elif tail == "never":
                await peer.gone()

    await warm(engines, script)
    response = await engines.ask(stream=True)
    assert (await response.text()).endswith("data: [DONE]\n\n")
    assert len(unattended) == 1
    (turn,) = await engines.harness.turns(hone_headers(response)["episode-id"])
    assert (turn.finish_reason, turn.trainable, turn.output_ids) == ("stop", True, (3, 4))
    if tail == "never":
        await asyncio.sleep(1.2)
    else:
        await asyncio.sleep(0.2)
    assert await engines.open_connections() == (tail != "never")


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_ends_the_engines_work(engines: Engines, unattended, stream):
    """Its connection to the engine is closed, it is counted as left, and of a stream what came is kept."""
    await warm(engines, silent(*((SSE, delta("fo", 3)) if stream else ())))
    harness = engines.harness
    asking = asyncio.create_task(
        harness.http.post(harness.url + CHAT_PATH, headers=harness.headers("trainer"), json=CHAT | {"stream": stream})
    )
    if stream:
        response = await asking
        await response.content.readany()
        response.close()
    else:
        await asyncio.sleep(0.3)
        asking.cancel()
        with pytest.raises((asyncio.CancelledError, aiohttp.ClientError)):
            await asking
    async with asyncio.timeout(5):
        while not engines.harness.count(
            "hone_requests_total", route=CHAT_PATH, model=POLICY if stream else "", status="499"
        ):
            await asyncio.sleep(0.02)
    assert len(unattended) == 1
    assert await engines.open_connections() == 0
    if stream:
        (turn,) = await engines.harness.turns(hone_headers(response)["episode-id"])
        assert (turn.finish_reason, turn.output_ids) == ("cancelled", (3,))


async def test_many_requests_on_one_connection(engines: Engines, unattended):
    """Heads that repeat are recognised whatever the body's length is, and each gets its own answer."""
    await warm(engines, answering(with_length(ANSWER)))
    for words in range(5):
        response = await engines.ask(stream=False, stop=["x" * words])
        assert response.status == 200
        assert (await response.json())["choices"][0]["message"]["content"] == "four"
    assert len(unattended) == 5
    (turn,) = await engines.harness.turns(hone_headers(response)["episode-id"])
    assert turn.trainable
