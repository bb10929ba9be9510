"""Outside models through LiteLLM, before fake providers under real HTTP."""

import asyncio
import json
import logging
import subprocess
import sys
from collections.abc import AsyncIterator, Callable

import pytest
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from prometheus_client import CollectorRegistry

from core.config.schema import HoneConfig
from core.errors import (
    EngineError,
    EngineUnavailable,
    InvalidRequest,
    ModelNotFound,
    ProviderRefused,
    RateLimited,
)
from gateway.metrics import GatewayMetrics
from gateway.outside.models import OutsideModels
from gateway.upstream.base import Unreachable, UpstreamResponse
from tests.conftest import OpenStore
from tests.gateway_harness import POLICY, hone_headers, running_gateway
from tests.provider_fakes import FakeProvider, fake_provider

GPT = "openai/gpt-4o"
CLAUDE = "anthropic/claude-sonnet-4-5"
KEY = "sk-very-secret"
MESSAGES = [{"role": "user", "content": "2 + 2?"}]
Make = Callable[..., HoneConfig]


@pytest.fixture
async def provider() -> AsyncIterator[FakeProvider]:
    """A provider that speaks both APIs."""
    async with fake_provider() as running:
        yield running


@pytest.fixture
async def outside(provider: FakeProvider, make_config: Make) -> AsyncIterator[OutsideModels]:
    """Both kinds of models, served by the fake provider."""
    models = OutsideModels(config=_config(make_config, provider.url), metrics=GatewayMetrics(CollectorRegistry()))
    await models.start()
    yield models
    await models.stop()


def _config(make_config: Make, url: str, **more: object) -> HoneConfig:
    shared = {"api_key": KEY, "headers": {"x-team": "hone"}} | more
    openai, anthropic = shared | {"base_url": f"{url}/v1"}, shared | {"base_url": url}
    providers = {"openai": openai, "anthropic": anthropic}
    return make_config({"outside.providers": providers, "outside.preload": False})


async def _send(outside: OutsideModels, model: str, *, stream: bool = False, **fields: object) -> UpstreamResponse:
    body = {"model": "anything", "messages": MESSAGES, "max_tokens": 5} | fields
    return await outside.send(model, "chat.completions", json.dumps(body).encode(), stream)


async def _chunks(response: UpstreamResponse) -> list[ChatCompletionChunk]:
    events = (await response.read()).decode().split("\n\n")
    assert events[-2:] == ["data: [DONE]", ""]
    return [ChatCompletionChunk.model_validate_json(event.removeprefix("data: ")) for event in events[:-2]]


async def test_only_configured_providers_are_known(outside: OutsideModels):
    """A name belongs to an outside model only if its provider is configured."""
    assert outside.knows(GPT) and outside.knows(CLAUDE)
    assert not any(outside.knows(name) for name in ("coder", "openai/", "openai", "mistral/large", "/gpt-4o"))
    with pytest.raises(ModelNotFound):
        await _send(outside, "mistral/large")


@pytest.mark.parametrize("model", [GPT, CLAUDE])
async def test_a_whole_answer_is_openai_json(outside: OutsideModels, model: str):
    """Whoever answers, the bytes are a chat completion with its usage."""
    async with await _send(outside, model) as response:
        answer = ChatCompletion.model_validate_json(await response.read())
        assert response.status == 200
        assert answer.choices[0].message.content == "four, five"
        assert answer.choices[0].finish_reason == "stop"
        assert answer.usage is not None and answer.usage.prompt_tokens == 11
        assert await response.next() == b""


@pytest.mark.parametrize("model", [GPT, CLAUDE])
async def test_a_stream_is_openai_events(outside: OutsideModels, model: str):
    """Text comes in parts, then the finish reason, the usage and the end mark."""
    async with await _send(outside, model, stream=True) as response:
        chunks = await _chunks(response)
    said = [choice for chunk in chunks for choice in chunk.choices]
    assert [choice.delta.content for choice in said if choice.delta.content] == ["four", ", five"]
    assert [choice.finish_reason for choice in said if choice.finish_reason] == ["stop"]
    assert chunks[-1].usage is not None and chunks[-1].usage.completion_tokens == 3


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("model", [GPT, CLAUDE])
async def test_tool_calls_pass(outside: OutsideModels, provider: FakeProvider, model: str, stream: bool):
    """A call keeps its id, name and arguments, whole or in parts."""
    provider.tool = True
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    tools = [{"type": "function", "function": {"name": "add", "parameters": schema}}]
    response = await _send(outside, model, stream=stream, tools=tools)
    if stream:
        choices = [choice for chunk in await _chunks(response) for choice in chunk.choices]
        parts = [part for choice in choices for part in choice.delta.tool_calls or []]
        name = next(part.function.name for part in parts if part.function and part.function.name)
        arguments = "".join(part.function.arguments or "" for part in parts if part.function)
        finish = choices[-1].finish_reason
    else:
        choice = ChatCompletion.model_validate_json(await response.read()).choices[0]
        assert choice.message.tool_calls is not None
        call = choice.message.tool_calls[0]
        name, arguments, finish = call.function.name, call.function.arguments, choice.finish_reason
    assert (name, json.loads(arguments), finish) == ("add", {"a": 1}, "tool_calls")


async def test_unknown_fields_reach_the_provider_and_steer_nothing_here(
    outside: OutsideModels, provider: FakeProvider
):
    """What LiteLLM would take as its own option is a plain field of the request; keys and headers are ours."""
    fields = {"odd": {"a": 1}, "top_k": 3, "mock_response": "no", "store": True, "metadata": {"a": "b"}}
    await _send(outside, GPT, **fields)
    sent = provider.requests[-1]
    assert (sent["model"], sent["odd"], sent["top_k"]) == ("gpt-4o", {"a": 1}, 3)
    assert "store" not in sent and "metadata" not in sent
    headers = {name.lower(): value for name, value in provider.headers[-1].items()}
    assert headers["authorization"] == f"Bearer {KEY}" and headers["x-team"] == "hone"
    with pytest.raises(InvalidRequest, match="base_url"):
        await _send(outside, GPT, base_url="http://127.0.0.1:1")
    await _send(outside, CLAUDE, top_k=3)
    assert provider.requests[-1]["top_k"] == 3


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("model", [GPT, CLAUDE])
async def test_a_provider_at_its_limit_says_when_to_come_back(
    outside: OutsideModels, provider: FakeProvider, model: str, stream: bool
):
    """429 becomes RateLimited with the provider's Retry-After, after exactly one request."""
    provider.refuse = (429, _refusal("slow down", "rate_limit_error"), {"retry-after": "7"})
    with pytest.raises(RateLimited) as caught:
        await _send(outside, model, stream=stream)
    assert caught.value.retry_after_seconds == 7.0
    assert len(provider.requests) == 1


@pytest.mark.parametrize("model", [GPT, CLAUDE])
@pytest.mark.parametrize("status", [401, 403])
async def test_a_refused_key_is_our_fault_and_stays_secret(
    outside: OutsideModels, provider: FakeProvider, model: str, status: int, caplog: pytest.LogCaptureFixture
):
    """A client sees 502 without a word about the key, and nothing is logged with it."""
    caplog.set_level(logging.DEBUG)
    provider.refuse = (status, _refusal(f"Incorrect API key provided: {KEY}", "authentication_error"), {})
    with pytest.raises(ProviderRefused) as caught:
        await _send(outside, model)
    assert caught.value.status == 502
    assert KEY not in f"{caught.value} {caught.value.hint}"
    assert KEY not in caplog.text


@pytest.mark.parametrize("model", [GPT, CLAUDE])
@pytest.mark.parametrize(
    ("status", "message", "expected"),
    [
        (400, "max_tokens is too large", InvalidRequest),
        (400, "prompt is too long: maximum context length is 10 tokens", InvalidRequest),
        (404, "no such model", ModelNotFound),
        (500, "something broke", EngineError),
        (503, "come back later", EngineUnavailable),
    ],
)
async def test_errors_keep_their_meaning(
    outside: OutsideModels, provider: FakeProvider, model: str, status: int, message: str, expected: type[Exception]
):
    """The client's mistakes stay the client's, the provider's become engine errors; nothing is sent twice."""
    provider.refuse = (status, _refusal(f"{message} {KEY}", "api_error"), {})
    with pytest.raises(expected) as caught:
        await _send(outside, model)
    assert KEY not in str(caught.value)
    assert len(provider.requests) == 1


@pytest.mark.parametrize("model", [GPT, CLAUDE])
async def test_a_provider_that_is_away_is_unreachable(make_config: Make, model: str):
    """A refused connection may be answered by another model."""
    config = _config(make_config, "http://127.0.0.1:1")
    models = OutsideModels(config=config, metrics=GatewayMetrics(CollectorRegistry()))
    with pytest.raises(Unreachable):
        await _send(models, model)
    await models.stop()


@pytest.mark.parametrize("model", [GPT, CLAUDE])
async def test_a_silent_provider_times_out(make_config: Make, provider: FakeProvider, model: str):
    """A provider that says nothing for its time is an engine error."""
    provider.forever = True
    config = _config(make_config, provider.url, timeout_seconds=0.3)
    models = OutsideModels(config=config, metrics=GatewayMetrics(CollectorRegistry()))
    with pytest.raises(EngineError, match="too long"):
        await _send(models, model)
    await models.stop()


@pytest.mark.parametrize("end_early", [False, True])
@pytest.mark.parametrize("model", [GPT, CLAUDE])
async def test_a_broken_stream_is_an_error_and_no_answer(
    outside: OutsideModels, provider: FakeProvider, model: str, end_early: bool
):
    """Neither a cut connection nor a stream that stops without a finish reason looks like a whole answer."""
    provider.break_after, provider.end_early = 3, end_early
    seen = b""
    with pytest.raises(EngineError):
        async with await _send(outside, model, stream=True) as response:
            while data := await response.next():
                seen += data
    assert b"four" in seen and b"[DONE]" not in seen and b'"stop"' not in seen


@pytest.mark.parametrize("model", [GPT, CLAUDE])
async def test_closing_a_stream_ends_the_providers_call(outside: OutsideModels, provider: FakeProvider, model: str):
    """A client that leaves costs nothing more: the provider sees its connection close."""
    provider.forever = True
    response = await _send(outside, model, stream=True)
    assert await response.next()
    response.close()
    response.close()
    assert await response.next() == b""
    async with asyncio.timeout(10):
        await provider.ended.wait()


@pytest.mark.parametrize("model", [GPT, CLAUDE])
async def test_cancelling_ends_the_providers_call(outside: OutsideModels, provider: FakeProvider, model: str):
    """A cancelled request for a whole answer closes the provider's connection."""
    provider.forever = True
    call = asyncio.create_task(_send(outside, model))
    async with asyncio.timeout(30):
        await provider.begun.wait()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await provider.ended.wait()


async def test_completions_are_refused(outside: OutsideModels):
    """Outside models answer chat completions only."""
    with pytest.raises(InvalidRequest, match="chat completions"):
        await outside.send(GPT, "completions", b'{"prompt": "a"}', False)


async def test_prices_come_from_litellm(outside: OutsideModels):
    """A known model's usage has a price; an unknown one has none."""
    usage = {"prompt_tokens": 1000, "completion_tokens": 100, "total_tokens": 1100}
    assert outside.cost_usd(GPT, usage) is None, "nothing is imported for a price alone"
    await _send(outside, GPT)
    assert outside.cost_usd(GPT, usage) == pytest.approx(1000 * 2.5e-6 + 100 * 1e-5)
    assert outside.cost_usd("openai/no-such-model", usage) is None


async def test_an_outside_model_is_the_fallback_of_an_own_one(
    provider: FakeProvider, fresh_sqlite_url: str, open_store: OpenStore, make_config: Make
):
    """Without an engine the next model in the list answers, whole and streamed, and the headers say so."""
    overrides = {
        "outside.providers": {"openai": {"api_key": KEY, "base_url": f"{provider.url}/v1"}},
        "gateway.fallbacks": {POLICY: [GPT]},
        "gateway.retries": 0,
    }
    async with running_gateway(await open_store(fresh_sqlite_url), make_config, overrides) as harness:
        for stream in (False, True):
            response = await harness.post(
                "/v1/chat/completions", {"model": POLICY, "messages": MESSAGES, "stream": stream}
            )
            assert response.status == 200
            assert hone_headers(response)["fallback-from"] == POLICY
            assert "four" in await response.text()


async def test_an_own_model_is_the_fallback_of_a_busy_provider(
    provider: FakeProvider, fresh_sqlite_url: str, open_store: OpenStore, make_config: Make
):
    """A provider that wants a long pause is not asked again: the next model answers at once."""
    overrides = {
        "outside.providers": {"openai": {"api_key": KEY, "base_url": f"{provider.url}/v1"}},
        "gateway.fallbacks": {GPT: [POLICY]},
    }
    provider.refuse = (429, _refusal("slow down", "rate_limit_error"), {"retry-after": "3600"})
    async with running_gateway(await open_store(fresh_sqlite_url), make_config, overrides) as harness:
        await harness.add_engine()
        response = await harness.post("/v1/chat/completions", {"model": GPT, "messages": MESSAGES, "max_tokens": 4})
        assert response.status == 200
        assert hone_headers(response)["fallback-from"] == GPT
    assert len(provider.requests) == 1


def test_litellm_is_not_imported_before_it_is_needed():
    """The gateway starts without LiteLLM, and importing LiteLLM asks no other machine."""
    script = """
import asyncio, socket, sys
def refuse(*args, **kwargs):
    raise AssertionError("the network was touched")
from prometheus_client import CollectorRegistry
from core.config.load import load_config
from gateway.app import create_app
from gateway.metrics import GatewayMetrics
from gateway.outside.models import OutsideModels
assert "litellm" not in sys.modules
config = load_config(environment={"HONE_CONFIG": "/dev/null"}, overrides={"outside.preload": True})
async def unconfigured():
    models = OutsideModels(config=config, metrics=GatewayMetrics(CollectorRegistry()))
    await models.start()
    await models.stop()
asyncio.run(unconfigured())
assert "litellm" not in sys.modules
socket.socket.connect = socket.getaddrinfo = socket.create_connection = refuse
from gateway.outside.library import Library
async def load():
    library = Library()
    module = await library.load()
    assert not (module.callbacks or module.success_callback or module.failure_callback)
    await library.close()
asyncio.run(load())
"""
    done = subprocess.run([sys.executable, "-c", script], check=False, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def _refusal(message: str, kind: str) -> dict[str, object]:
    return {"type": "error", "error": {"message": message, "type": kind, "param": None, "code": None}}
