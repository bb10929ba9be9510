"""Engines that are away, die or are slow, and clients that leave."""

import asyncio
import json
from contextlib import asynccontextmanager
from itertools import islice

import aiohttp
import openai
import pytest
from aiohttp import web
from structlog.testing import capture_logs

from core.deployment import DeploymentStatus
from core.errors import StoreError
from serving.engines import fake_shapes
from tests.gateway_harness import POLICY, QUESTION, Harness, hone_headers, running_gateway

ASKED = {"model": POLICY, "messages": QUESTION, "max_tokens": 20, "seed": 1}
CHAT = ASKED | {"ignore_eos": True}
SDK_CHAT = ASKED | {"extra_body": {"ignore_eos": True}}


@pytest.fixture
async def harness(fresh_sqlite_url, open_store, make_config):
    """A gateway on SQLite with one engine."""
    store = await open_store(fresh_sqlite_url)
    async with running_gateway(store, make_config, {"gateway.request_timeout_seconds": 2.0}) as harness:
        await harness.add_engine()
        yield harness


async def until(condition, seconds: float = 10.0) -> None:
    """Wait until ``condition`` holds."""
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.01)


async def test_no_live_deployment_is_503_with_a_time_to_retry(harness: Harness):
    """Without a ready replica the answer is 503 in OpenAI's shape and says when to come back."""
    await harness.deploy("dep_a", status=DeploymentStatus.UNHEALTHY)
    response = await harness.post("/v1/chat/completions", CHAT)
    assert response.status == 503
    assert response.headers["retry-after"] == "1"
    assert (await response.json())["error"]["code"] == "engine_unavailable"
    assert (await harness.http.get(harness.url + "/ready")).status == 503


@pytest.mark.parametrize("stream", [False, True])
async def test_a_dead_replica_is_replaced_by_another_that_holds_the_version(harness: Harness, stream):
    """A refused connection before the first byte costs no answer while another replica holds the version."""
    await harness.mint()
    await harness.deploy("dep_a", versions=(1,))
    await harness.add_engine("dep_b", versions=(1,))
    await harness.engine.stop()
    for _ in range(4):
        response = await harness.post("/v1/chat/completions", CHAT | {"stream": stream, "model": "coder@1"})
        assert response.status == 200
        assert hone_headers(response)["policy-version"] == "1"
    await harness.engines["dep_b"].stop()
    response = await harness.post("/v1/chat/completions", CHAT | {"stream": stream, "model": "coder@1"})
    assert response.status == 503
    assert response.headers["retry-after"] == "1"


async def test_the_version_is_kept_when_the_replica_changes(harness: Harness):
    """No other version answers in place of the one that the only reachable replica does not hold."""
    await harness.mint()
    await harness.deploy("dep_a", versions=(1,))
    await harness.add_engine("dep_b")
    await harness.engine.stop()
    response = await harness.post("/v1/chat/completions", CHAT | {"model": "coder@1"})
    assert response.status == 503
    assert harness.engines["dep_b"].requests == []


async def test_an_adapter_that_was_just_unloaded_is_looked_for_elsewhere(harness: Harness):
    """When the engine does not know the version any more, another replica answers."""
    await harness.mint()
    await harness.deploy("dep_a", versions=(1,))
    await harness.add_engine("dep_b", versions=(1,))
    harness.engine.adapters.clear()
    for _ in range(3):
        response = await harness.post("/v1/chat/completions", CHAT | {"model": "coder@1"})
        assert response.status == 200


async def test_an_engine_error_is_502_and_no_turn(harness: Harness):
    """A 500 of the engine becomes 502 with its message, and nothing is recorded."""
    harness.engine.fail_requests = 3
    with pytest.raises(openai.InternalServerError) as error:
        await harness.client().chat.completions.create(**SDK_CHAT)
    assert error.value.status_code == 502
    assert error.value.code == "engine_error"
    assert harness.gateway.recorder.buffered == 0


async def test_a_silent_engine_times_out(harness: Harness):
    """An engine that sends nothing for the configured time gets 504, not an endless wait."""
    harness.engine.token_delay_seconds = 5.0
    response = await harness.post("/v1/chat/completions", CHAT)
    assert response.status == 504
    assert "sent nothing" in (await response.json())["error"]["message"]


async def test_a_stream_that_the_engine_breaks_off_ends_with_an_error_event(harness: Harness):
    """The client's SDK raises, the failure is counted, and the partial Turn is kept but never trains."""
    harness.engine.die_after_tokens = 3
    response = await harness.post("/v1/chat/completions", CHAT | {"stream": True}, key="trainer")
    last = (await response.text()).strip().split("\n\n")[-1]
    assert json.loads(last.removeprefix("data: "))["error"]["code"] == "engine_error"
    (turn,) = await harness.turns(hone_headers(response)["episode-id"])
    assert (turn.finish_reason, turn.trainable, len(turn.output_ids)) == ("engine_failed", False, 3)
    assert harness.count("hone_stream_failures_total") == 1
    labels = {"route": "/v1/chat/completions", "model": POLICY}
    assert harness.count("hone_requests_total", **labels, status="599") == 1
    assert harness.count("hone_requests_total", **labels, status="200") == 0
    with pytest.raises(openai.APIError):
        async for _ in await harness.client().chat.completions.create(**SDK_CHAT, stream=True):
            pass


async def test_a_client_that_leaves_a_stream_cancels_it_and_leaves_a_turn(harness: Harness):
    """Disconnecting stops the engine; what was sampled is recorded as cancelled and never trains."""
    harness.engine.token_delay_seconds = 0.1
    stream = await harness.client("trainer").chat.completions.create(**SDK_CHAT, stream=True)
    episode_id = stream.response.headers["x-hone-episode-id"]
    received = 0
    async for chunk in stream:
        received += bool(chunk.choices[0].delta.content)
        if received == 3:
            break
    await stream.close()
    await until(lambda: harness.engine.running == 0)
    left = {"route": "/v1/chat/completions", "model": POLICY, "status": "499"}
    await until(lambda: harness.count("hone_requests_total", **left) == 1)
    (turn,) = await harness.turns(episode_id)
    assert turn.finish_reason == "cancelled"
    assert not turn.trainable
    assert turn.exact
    assert 3 <= len(turn.output_ids) < 20


async def test_a_client_that_leaves_before_a_whole_answer_stops_the_engine(harness: Harness):
    """Disconnecting while waiting gives the engine its capacity back."""
    harness.engine.token_delay_seconds = 0.05
    with pytest.raises(TimeoutError):
        await harness.http.post(
            harness.url + "/v1/chat/completions",
            json=CHAT,
            headers=harness.headers(),
            timeout=aiohttp.ClientTimeout(total=0.3),
        )
    await until(lambda: harness.engine.running == 0)
    await until(lambda: harness.gateway.routing.in_flight.running("dep_a") == 0)


async def test_many_streams_at_once_are_all_recorded(harness: Harness):
    """Streams in parallel mix up neither answers nor Turns."""
    harness.engine.token_delay_seconds = 0.002

    async def one(seed: int) -> tuple[str, str]:
        body = CHAT | {"stream": True, "seed": seed, "temperature": 1.0}
        response = await harness.post("/v1/chat/completions", body, key="trainer")
        pieces = [
            json.loads(line.removeprefix("data: "))["choices"][0]["delta"].get("content", "")
            for line in (await response.text()).strip().split("\n\n")[:-1]
        ]
        return hone_headers(response)["episode-id"], "".join(pieces)

    answers = await asyncio.gather(*(one(seed) for seed in range(40)))
    assert await harness.gateway.recorder.flush(20.0)
    for episode_id, text in answers:
        (turn,) = await harness.turns(episode_id)
        assert turn.response["content"] == text
        assert turn.exact


async def test_an_error_inside_a_stream_is_openais_error_event(harness: Harness, monkeypatch):
    """An engine that reports its failure inside the stream gets the same end as one that dies."""

    async def failing(request, answer):
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        chunks = [
            *islice(fake_shapes.stream(answer.call, answer.generations), 3),
            fake_shapes.error_body("no memory", type_="X", code=500),
        ]
        for chunk in chunks:
            await response.write(f"data: {json.dumps(chunk)}\n\n".encode())
        await response.write(b"data: [DONE]\n\n")
        return response

    monkeypatch.setattr(harness.engine, "_stream", failing)
    response = await harness.post("/v1/chat/completions", CHAT | {"stream": True}, key="trainer")
    last = (await response.text()).strip().split("\n\n")[-1]
    error = json.loads(last.removeprefix("data: "))["error"]
    assert error["code"] == "engine_error"
    assert "no memory" in error["message"]
    (turn,) = await harness.turns(hone_headers(response)["episode-id"])
    assert (turn.finish_reason, len(turn.output_ids)) == ("engine_failed", 2)


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/admin/v1/policies"])
async def test_what_a_store_says_stays_in_the_log(harness: Harness, monkeypatch, path):
    """A store error reaches callers as a generic 503 with the request id; host and cause are logged under it."""

    @asynccontextmanager
    async def away():
        raise StoreError("cannot reach db.internal:5432", hint="ask db.internal")
        yield

    monkeypatch.setattr(harness.store, "reading", away)
    with capture_logs() as logs:
        response = await harness.post(path, CHAT, key="hone-unknown", **{"x-request-id": "mine"})
    error = (await response.json())["error"]
    assert (response.status, error["code"], response.headers["retry-after"]) == (503, "store_error", "1")
    assert "db.internal" not in await response.text()
    assert "mine" in error["message"]
    assert any(line.get("request_id") == "mine" and "db.internal" in line["error"] for line in logs)


async def test_a_body_that_is_too_long_is_refused(harness: Harness):
    """Above 32 MiB, declared or in chunks, the answer is 413 in OpenAI's shape and no engine is asked."""

    async def chunks():
        for _ in range(33):
            yield b" " * 1024 * 1024

    for body in (b" " * (33 * 1024 * 1024), chunks()):
        response = await harness.http.post(harness.url + "/v1/chat/completions", headers=harness.headers(), data=body)
        assert response.status == 413
        assert (await response.json())["error"]["code"] == "request_too_large"
    assert harness.engine.requests == []
