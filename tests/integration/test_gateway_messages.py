"""The Anthropic Messages API under a real gateway, through Anthropic's own client."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from typing import Any

import anthropic
import pytest
from anthropic import Anthropic, AsyncAnthropic

from core.access import Scope
from tests.gateway_harness import BASE, POLICY, Harness, hone_headers, running_gateway
from tests.provider_fakes import fake_provider
from tests.scripted_engine import ScriptedEngine

Client = Callable[..., AsyncAnthropic]
ASK: dict[str, Any] = {"model": POLICY, "max_tokens": 16, "messages": [{"role": "user", "content": "2 + 2?"}]}
SEARCH = {"type": "web_search_20250305", "name": "web_search"}
TOOL = {
    "name": "look",
    "description": "Looks a thing up.",
    "input_schema": {"type": "object", "properties": {"thing": {"type": "string"}}},
}


@pytest.fixture
async def harness(fresh_sqlite_url, open_store, make_config):
    """A gateway on SQLite, no engine yet."""
    async with running_gateway(await open_store(fresh_sqlite_url), make_config) as harness:
        yield harness


@pytest.fixture
async def engine(harness: Harness) -> ScriptedEngine:
    """The only replica, saying what the test wants."""
    engine = ScriptedEngine()
    await engine.start()
    harness.engines["dep_a"] = engine
    await harness.deploy("dep_a")
    return engine


@pytest.fixture
async def client(harness: Harness) -> AsyncIterator[Client]:
    """Makes Anthropic's clients, without retries of their own."""
    async with AsyncExitStack() as stack:
        yield lambda key="user": clients(stack, harness, key)


def clients(stack: AsyncExitStack, harness: Harness, key: str = "user") -> AsyncAnthropic:
    """A client that closes with the stack."""
    made = AsyncAnthropic(api_key=harness.keys.get(key, key), base_url=harness.url, max_retries=0)
    stack.push_async_callback(made.close)
    return made


def calls(engine: ScriptedEngine) -> None:
    """Let the engine think, speak and call two tools."""
    one = {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": '{"thing": "sea"}'}}
    two = {"id": "call_2", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    engine.message = {"role": "assistant", "reasoning": "hm", "content": "I look.", "tool_calls": [one, two]}
    engine.deltas = [
        {"reasoning": "h"},
        {"reasoning": "m"},
        {"content": "I look."},
        {"tool_calls": [{"index": 0, "id": "call_1", "type": "function", "function": {"name": "look"}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": '{"thing":'}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": ' "sea"}'}}]},
        {"tool_calls": [{"index": 1, "id": "call_2", "function": {"name": "look", "arguments": "{}"}}]},
    ]
    engine.finish_reason = "tool_calls"


async def test_a_message_is_the_engines_answer(harness: Harness, client: Client, engine: ScriptedEngine):
    """Text, names, reason, usage and request id, as Anthropic's client reads them."""
    message = await client().messages.create(**ASK, system="be brief")
    assert message.content[0].text == "four"
    assert (message.role, message.type, message.model) == ("assistant", "message", "coder@0")
    assert (message.stop_reason, message.stop_sequence) == ("end_turn", None)
    assert (message.usage.input_tokens, message.usage.cache_read_input_tokens) == (12, 8)
    assert message.usage.output_tokens == 5
    assert message.id.startswith("msg_") and message._request_id
    assert engine.requests[-1]["messages"][0] == {"role": "system", "content": "be brief"}


async def test_the_synchronous_client_works(harness: Harness, engine: ScriptedEngine):
    """The same, without asyncio, whole and streamed."""

    def ask() -> tuple[str, str]:
        with Anthropic(api_key=harness.keys["user"], base_url=harness.url) as sync:
            whole = sync.messages.create(**ASK)
            with sync.messages.stream(**ASK) as stream:
                return whole.content[0].text, "".join(stream.text_stream)

    assert await asyncio.to_thread(ask) == ("four", "four")


async def test_a_bearer_token_works_as_well(harness: Harness, engine: ScriptedEngine):
    """Agent CLIs send ANTHROPIC_AUTH_TOKEN as a bearer token."""
    async with AsyncAnthropic(api_key=None, auth_token=harness.keys["user"], base_url=harness.url) as bearer:
        assert (await bearer.messages.create(**ASK)).content[0].text == "four"


async def test_a_stream_has_anthropics_events_in_their_order(harness: Harness, engine: ScriptedEngine):
    """Exactly one start, block, ping, deltas, end of the block, reason and end, each named after its type."""
    response = await harness.http.post(
        f"{harness.url}/v1/messages", json=ASK | {"stream": True}, headers={"x-api-key": harness.keys["user"]}
    )
    frames = [frame.split("\n") for frame in (await response.text()).split("\n\n")[:-1]]
    assert response.headers["content-type"].startswith("text/event-stream")
    assert [name for name, _ in frames] == [
        "event: message_start",
        "event: content_block_start",
        "event: ping",
        "event: content_block_delta",
        "event: content_block_delta",
        "event: content_block_stop",
        "event: message_delta",
        "event: message_stop",
    ]
    events = [json.loads(data.removeprefix("data: ")) for _, data in frames]
    assert events[0]["message"]["usage"]["input_tokens"] == 12
    assert events[-2]["usage"]["output_tokens"] == 5


@pytest.mark.parametrize("stream", [False, True])
async def test_tools_and_thinking(harness: Harness, client: Client, engine: ScriptedEngine, stream: bool):
    """Thinking, text and two calls, whole or put together by the client's stream helper."""
    calls(engine)
    asked = ASK | {"tools": [TOOL], "tool_choice": {"type": "any"}}
    if stream:
        async with client().messages.stream(**asked) as events:
            message = await events.get_final_message()
    else:
        message = await client().messages.create(**asked)
    assert [block.type for block in message.content] == ["thinking", "text", "tool_use", "tool_use"]
    assert message.content[0].thinking == "hm" and message.content[0].signature
    assert [(block.id, block.input) for block in message.content[2:]] == [
        ("call_1", {"thing": "sea"}),
        ("call_2", {}),
    ]
    assert message.stop_reason == "tool_use"
    assert engine.requests[-1]["tool_choice"] == "required"
    assert engine.requests[-1]["tools"][0]["function"]["name"] == "look"


async def test_an_agent_loop_continues_its_episode(harness: Harness, client: Client, engine: ScriptedEngine):
    """Call, result, answer: what the client sends back are two Turns of one conversation on the surface messages."""
    calls(engine)
    trainer = client("trainer")
    raw = await trainer.messages.with_raw_response.create(**ASK, tools=[TOOL])
    message = await raw.parse()
    engine.message, engine.finish_reason = {"role": "assistant", "content": "blue"}, "stop"
    results = [
        {"type": "tool_result", "tool_use_id": block.id, "content": [{"type": "text", "text": "blue"}]}
        for block in message.content
        if block.type == "tool_use"
    ]
    history = [
        *ASK["messages"],
        {"role": "assistant", "content": message.content},
        {"role": "user", "content": results},
    ]
    episode = raw.headers["x-hone-episode-id"]
    answer = await trainer.messages.create(**(ASK | {"messages": history}), tools=[TOOL])
    assert answer.content[0].text == "blue"
    roles = [sent["role"] for sent in engine.requests[-1]["messages"]]
    assert roles == ["user", "assistant", "tool", "tool"]
    turns = await harness.turns(episode)
    assert len(turns) == 2
    assert {turn.endpoint for turn in turns} == {"chat.completions"}
    assert {turn.surface for turn in turns} == {"messages"}
    assert message.id.removeprefix("msg_") == turns[0].id.partition("_")[2]


async def test_the_clients_tool_runner_works(harness: Harness, client: Client, engine: ScriptedEngine):
    """The beta client runs the calls and sends their results, until the model has its answer."""
    looked = []

    @anthropic.beta_async_tool
    async def look(thing: str = "") -> str:
        """Looks a thing up."""
        looked.append(thing)
        engine.message, engine.finish_reason = {"role": "assistant", "content": "blue"}, "stop"
        return "blue"

    calls(engine)
    runner = client().beta.messages.tool_runner(**ASK, tools=[look], betas=["token-efficient-tools-2025-02-19"])
    last = await runner.until_done()
    assert last.content[0].text == "blue" and looked == ["sea", ""]
    assert [sent["role"] for sent in engine.requests[-1]["messages"]] == ["user", "assistant", "tool", "tool"]


async def test_server_held_threads_are_refused_as_the_client_knows_it(
    harness: Harness, client: Client, engine: ScriptedEngine
):
    """A request that leaves its history to the server never reaches a model without it."""
    with pytest.raises(anthropic.BadRequestError) as caught:
        await client().beta.messages.create(**ASK, thread={"type": "create"})
    assert caught.value.body["error"]["details"]["error_code"] == "thread_unsupported_request"
    assert engine.requests == []


async def test_a_begun_answer_is_continued(harness: Harness, client: Client, engine: ScriptedEngine):
    """The engine is asked to go on with a last assistant message."""
    begun = [*ASK["messages"], {"role": "assistant", "content": "It is"}]
    await client().messages.create(**(ASK | {"messages": begun}))
    assert engine.requests[-1]["continue_final_message"] is True


async def test_a_stop_sequence_is_named(harness: Harness, client: Client, engine: ScriptedEngine):
    """The engine's matched stop string is the message's stop_sequence."""
    engine.stop_reason = "END"
    message = await client().messages.create(**ASK, stop_sequences=["END"])
    assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", "END")
    assert engine.requests[-1]["stop"] == ["END"]


async def test_headers_and_consent_are_those_of_the_chat_route(harness: Harness, engine: ScriptedEngine):
    """x-hone headers come back, x-hone-train withdraws consent, an idempotency key adds no second Turn."""
    headers = {"x-api-key": harness.keys["trainer"], "idempotency-key": "k1"}
    first = await harness.http.post(f"{harness.url}/v1/messages", json=ASK, headers=headers)
    again = await harness.http.post(f"{harness.url}/v1/messages", json=ASK, headers=headers)
    seen = hone_headers(first)
    assert {"episode-id", "turn-id", "variant", "policy-version"} <= seen.keys()
    assert hone_headers(again)["turn-id"] == seen["turn-id"]
    (turn,) = await harness.turns(seen["episode-id"])
    assert turn.trainable
    without = await harness.http.post(
        f"{harness.url}/v1/messages",
        json=ASK,
        headers={"x-api-key": harness.keys["trainer"], "x-hone-train": "false"},
    )
    (kept,) = await harness.turns(hone_headers(without)["episode-id"])
    assert not kept.trainable and not kept.content_kept


async def test_counting_tokens(harness: Harness, client: Client, engine: ScriptedEngine):
    """The engine counts the prompt that it would read, with system prompt and tools."""
    counted = await client().messages.count_tokens(
        model=POLICY, messages=ASK["messages"], system="be brief", tools=[TOOL]
    )
    assert counted.input_tokens == 5
    assert engine.requests[-1]["model"] == BASE and engine.requests[-1]["tools"]
    engine.counts = False
    with pytest.raises(anthropic.NotFoundError):
        await client().messages.count_tokens(model=POLICY, messages=ASK["messages"])


@pytest.mark.parametrize(
    ("fields", "key", "expected", "kind"),
    [
        ({"messages": []}, "user", anthropic.BadRequestError, "invalid_request_error"),
        ({"tools": [SEARCH]}, "user", anthropic.BadRequestError, "invalid_request_error"),
        ({}, "nobody", anthropic.AuthenticationError, "authentication_error"),
        ({}, "feedback", anthropic.PermissionDeniedError, "permission_error"),
        ({"model": "no-such"}, "user", anthropic.NotFoundError, "not_found_error"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_errors_have_anthropics_shape(
    harness: Harness,
    client: Client,
    engine: ScriptedEngine,
    fields: Any,
    key: str,
    expected: Any,
    kind: str,
    stream: bool,
):
    """Type, message and request id, before a stream as for a whole answer."""
    await harness.add_key("feedback", scopes={Scope.FEEDBACK})
    with pytest.raises(expected) as caught:
        await client(key).messages.create(**(ASK | fields), stream=stream)
    body = caught.value.body
    assert body["type"] == "error" and body["error"]["type"] == kind and body["error"]["message"]
    assert body["request_id"] == caught.value.request_id == caught.value.response.headers["request-id"]


async def test_a_gateway_without_engines_is_overloaded(harness: Harness, client: Client):
    """529 with Retry-After: agent CLIs wait and try again."""
    with pytest.raises(anthropic.APIStatusError) as caught:
        await client().messages.create(**ASK)
    assert caught.value.status_code == 529
    assert caught.value.body["error"]["type"] == "overloaded_error"
    assert int(caught.value.response.headers["retry-after"]) >= 1


async def test_a_body_that_is_no_json_is_refused_in_shape(harness: Harness, engine: ScriptedEngine):
    """Whatever is sent, the error is Anthropic's."""
    for body in (b"", b"{", b"[]", b"\xff"):
        response = await harness.http.post(
            f"{harness.url}/v1/messages", data=body, headers={"x-api-key": harness.keys["user"]}
        )
        assert response.status == 400
        assert (await response.json())["error"]["type"] == "invalid_request_error"


async def test_a_stream_that_breaks_ends_in_an_error_event(harness: Harness, client: Client, engine: ScriptedEngine):
    """The client gets what came, then the error; the request is counted as broken."""
    engine.break_after = 2
    seen = []
    with pytest.raises(anthropic.APIStatusError) as caught:
        async with client().messages.stream(**ASK) as stream:
            async for event in stream:
                seen.append(event.type)
    assert "content_block_delta" in seen and "message_stop" not in seen
    assert caught.value.body["error"]["type"] == "api_error"
    async with asyncio.timeout(10):
        while not harness.count("hone_requests_total", route="/v1/messages", model=POLICY, status="599"):
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_cancels_the_engine(harness: Harness, engine: ScriptedEngine, stream: bool):
    """Neither a stream nor a whole answer goes on for nobody."""
    engine.forever = True
    request = harness.http.post(
        f"{harness.url}/v1/messages", json=ASK | {"stream": stream}, headers={"x-api-key": harness.keys["user"]}
    )
    async with asyncio.timeout(20):
        if stream:
            response = await request
            await response.content.readany()
            response.close()
        else:
            waiting = asyncio.ensure_future(request)
            await engine.begun.wait()
            waiting.cancel()
        await engine.left.wait()
        while not harness.count(
            "hone_requests_total", route="/v1/messages", model=POLICY if stream else "", status="499"
        ):
            await asyncio.sleep(0.01)


async def test_an_outside_model_answers_messages(fresh_sqlite_url, open_store, make_config):
    """A model of another provider speaks the Messages API as well, and its tokens can be counted."""
    async with fake_provider() as provider:
        overrides = {"outside.providers": {"openai": {"api_key": "k", "base_url": f"{provider.url}/v1"}}}
        async with running_gateway(await open_store(fresh_sqlite_url), make_config, overrides) as harness:
            asked = ASK | {"model": "openai/gpt-4o"}
            async with AsyncExitStack() as stack:
                messages = clients(stack, harness).messages
                message = await messages.create(**asked)
                async with messages.stream(**asked) as stream:
                    streamed = await stream.get_final_message()
                counted = await messages.count_tokens(model="openai/gpt-4o", messages=ASK["messages"])
    assert message.content[0].text == streamed.content[0].text == "four, five"
    assert streamed.usage.output_tokens == 3
    assert counted.input_tokens > 0


async def test_the_openapi_document_names_the_routes(harness: Harness):
    """The document shows bodies, headers and errors of both routes."""
    document = await (await harness.http.get(f"{harness.url}/openapi.json")).json()
    for path in ("/v1/messages", "/v1/messages/count_tokens"):
        operation = document["paths"][path]["post"]
        assert operation["requestBody"]["content"]["application/json"]["schema"]["required"]
        assert "529" in operation["responses"]
