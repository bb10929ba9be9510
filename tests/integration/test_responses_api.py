"""The Responses API through the official client, before a scripted model."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI, OpenAI
from openai.types.responses import Response, ResponseItem
from pydantic import BaseModel, TypeAdapter

from core.errors import EngineError, ModelNotFound, RateLimited
from tests.gateway_harness import served
from tests.responses_fakes import MODEL, FakeHostedTools, FakeInference, Said, responses_app
from tests.responses_harness import CODE_CALL, CODE_TOOL, WEATHER, Api, kinds

ITEM = TypeAdapter(ResponseItem)


@pytest.fixture
async def api(fresh_sqlite_url, open_store) -> AsyncIterator[Api]:
    """The Responses API on SQLite."""
    inference, hosted = FakeInference(), FakeHostedTools()
    app = responses_app(inference, await open_store(fresh_sqlite_url), hosted)
    async with served(app) as url:
        api = Api(url, inference, hosted)
        async with api.client:
            yield api


async def test_a_text_answer_is_a_whole_response(api: Api):
    """A string in gives a completed response with text, usage and the names of what answered."""
    api.say(Said(text="Four."))
    raw = await api.client.responses.with_raw_response.create(
        model="coder", input="2 + 2?", instructions="Be brief.", metadata={"a": "b"}, temperature=0.5, tools=[WEATHER]
    )
    Response.model_validate(json.loads(raw.text), strict=True)
    response = raw.parse()
    assert response.output_text == "Four."
    assert (response.status, response.model, response.metadata) == ("completed", MODEL, {"a": "b"})
    assert response.usage.input_tokens_details.cached_tokens == 2
    assert (response.usage.input_tokens, response.usage.output_tokens, response.usage.total_tokens) == (7, 5, 12)
    assert raw.headers["x-hone-turn-id"] == "turn_1"
    body = api.inference.bodies[0]
    assert body["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "2 + 2?"},
    ]
    assert body["temperature"] == 0.5
    assert "stream" not in body


async def test_a_stream_has_openais_events_in_order(api: Api):
    """Reasoning, then text: every event of both items, in OpenAI's order, with the text in pieces."""
    api.say(Said(text="Four it is.", reasoning="Two twos."))
    events = await api.events(input="2 + 2?")
    text = ["output_item.added", "content_part.added"]
    assert kinds(events) == [
        "created", "in_progress",
        *text, "reasoning_text.delta", "reasoning_text.done", "content_part.done", "output_item.done",
        *text, "output_text.delta", "output_text.done", "content_part.done", "output_item.done",
        "completed",
    ]  # fmt: skip
    deltas = [event["delta"] for event in events if event["type"] == "response.output_text.delta"]
    assert len(deltas) > 1
    assert "".join(deltas) == "Four it is."
    final = events[-1]["response"]
    assert [item["type"] for item in final["output"]] == ["reasoning", "message"]
    assert final["output"][0]["content"] == [{"type": "reasoning_text", "text": "Two twos."}]
    assert api.inference.bodies[0]["stream_options"] == {"include_usage": True}


async def test_streams_and_whole_answers_give_the_same_output(api: Api):
    """What is said whole and what is streamed end in the same items."""
    said = Said(text="Let me see.", reasoning="Hm.", calls=[("weather", '{"city": "Ulm"}'), ("weather", "{}")])
    api.say(said, said)
    whole = await api.client.responses.create(model="coder", input="Weather?", tools=[WEATHER])
    streamed = (await api.events(input="Weather?", tools=[WEATHER]))[-1]["response"]
    first = json.loads(whole.to_json())["output"]
    for item in (*first, *streamed["output"]):
        item.pop("id")
        item.pop("call_id", None)
    assert [item["type"] for item in first] == ["reasoning", "message", "function_call", "function_call"]
    assert first == streamed["output"]


async def test_a_function_call_goes_round(api: Api):
    """The client runs a function, sends its output with the previous response, and gets the answer."""
    api.say(Said(calls=[("weather", '{"city": "Ulm"}')]), Said(text="Rain."))
    first = await api.client.responses.create(
        model="coder", input="Weather?", tools=[WEATHER], instructions="Old.", tool_choice="required"
    )
    call = first.output[0]
    assert (call.type, call.name, call.arguments) == ("function_call", "weather", '{"city": "Ulm"}')
    second = await api.client.responses.create(
        model="coder",
        previous_response_id=first.id,
        instructions="New.",
        tools=[WEATHER],
        input=[{"type": "function_call_output", "call_id": call.call_id, "output": "rain"}],
    )
    assert second.output_text == "Rain."
    assert second.previous_response_id == first.id
    assert api.inference.bodies[1]["messages"] == [
        {"role": "system", "content": "New."},
        {"role": "user", "content": "Weather?"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {"id": call.call_id, "type": "function", "function": {"name": "weather", "arguments": call.arguments}}
            ],
        },
        {"role": "tool", "tool_call_id": call.call_id, "content": "rain"},
    ]
    assert api.inference.bodies[0]["tool_choice"] == "required"
    assert api.inference.calls[1].episode_id == "ep_1"
    assert api.inference.calls[0].surface == "responses"


async def test_output_items_can_be_sent_back_by_hand(api: Api):
    """Without a stored response, the items of an answer in the next input give the same conversation."""
    api.say(Said(reasoning="Hm.", text="Look.", calls=[("weather", "{}")]), Said(text="Rain."))
    first = await api.client.responses.create(model="coder", input="Weather?", tools=[WEATHER], store=False)
    output = {"type": "function_call_output", "call_id": first.output[-1].call_id, "output": "rain"}
    await api.client.responses.create(
        model="coder", input=[{"role": "user", "content": "Weather?"}, *first.output, output], store=False
    )
    assert [message["role"] for message in api.inference.bodies[1]["messages"]] == ["user", "assistant", "tool"]
    assistant = api.inference.bodies[1]["messages"][1]
    assert (assistant["reasoning"], assistant["content"]) == ("Hm.", "Look.")
    assert not api.inference.calls[0].store


async def test_the_clients_stream_helper_works(api: Api):
    """``client.responses.stream`` follows a stream and gives the parsed final response."""

    class Answer(BaseModel):
        value: int

    api.say(Said(text='{"value": 4}'), Said(calls=[("weather", '{"city": "Ulm"}')]))
    async with api.client.responses.stream(model="coder", input="2 + 2?", text_format=Answer) as stream:
        seen = [event.type async for event in stream]
        final = await stream.get_final_response()
    assert seen[-1] == "response.completed"
    assert final.output_parsed == Answer(value=4)
    schema = api.inference.bodies[0]["response_format"]
    assert (schema["type"], schema["json_schema"]["name"]) == ("json_schema", "Answer")
    async with api.client.responses.stream(model="coder", input="Weather?", tools=[WEATHER]) as stream:
        wanted = "response.function_call_arguments.delta"
        arguments = [event.snapshot async for event in stream if event.type == wanted]
    assert arguments[-1] == '{"city": "Ulm"}'


async def test_parse_and_the_sync_client_work(api: Api):
    """``responses.parse`` and the synchronous client, whole and streaming."""

    class Answer(BaseModel):
        value: int

    def ask() -> tuple[Answer | None, str]:
        with OpenAI(api_key="ten_a", base_url=f"{api.url}/v1", max_retries=0) as client:
            parsed = client.responses.parse(model="coder", input="2 + 2?", text_format=Answer)
            stream = client.responses.create(model="coder", input="2 + 2?", stream=True)
            text = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
            return parsed.output_parsed, text

    api.say(Said(text='{"value": 4}'), Said(text="Four."))
    assert await asyncio.to_thread(ask) == (Answer(value=4), "Four.")


async def test_length_ends_a_response_as_incomplete(api: Api):
    """A model that ran out of tokens gives an incomplete response, whole and streamed."""
    api.say(Said(text="Fo", finish="length"), Said(text="Fo", finish="length"))
    response = await api.client.responses.create(model="coder", input="2 + 2?", max_output_tokens=1)
    assert (response.status, response.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert response.output[0].status == "incomplete"
    events = await api.events(input="2 + 2?", max_output_tokens=1)
    assert events[-1]["type"] == "response.incomplete"
    assert api.inference.bodies[0]["max_completion_tokens"] == 1


async def test_errors_before_the_first_event_are_http_errors(api: Api):
    """What goes wrong before a stream begins is an HTTP error of the client, not an event."""
    for stream in (False, True):
        api.say(Said(error=ModelNotFound("no such model", param="model")), Said(error=RateLimited("slow down")))
        with pytest.raises(openai.NotFoundError):
            await api.client.responses.create(model="nobody", input="2 + 2?", stream=stream)
        with pytest.raises(openai.RateLimitError):
            await api.client.responses.create(model="coder", input="2 + 2?", stream=stream)


async def test_a_stream_that_breaks_off_fails(api: Api):
    """An engine that breaks off ends the stream with ``response.failed``; what came before stays in it."""
    api.say(Said(text="Four", error=EngineError("the engine broke off")))
    events = await api.events(input="2 + 2?")
    assert events[-1]["type"] == "response.failed"
    failed = events[-1]["response"]
    assert (failed["status"], failed["error"]["code"]) == ("failed", "server_error")
    assert failed["output"][0]["content"][0]["text"] == "Four"
    assert (await api.client.responses.retrieve(failed["id"])).status == "failed"


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"input": 3}, "input"),
        ({}, "input"),
        ({"input": "x", "conversation": "conv_1"}, "conversation"),
        ({"input": "x", "background": True}, "background"),
        ({"input": "x", "prompt": {"id": "p"}}, "prompt"),
        ({"input": "x", "max_tokens": 4}, "max_tokens"),
        ({"input": "x", "max_output_tokens": 0}, "max_output_tokens"),
        ({"input": "x", "temperature": 3}, "temperature"),
        ({"input": "x", "tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"input": "x", "tools": [{"type": "function"}]}, "tools[0].name"),
        ({"input": "x", "tool_choice": {"type": "function", "name": "f"}}, "tool_choice"),
        ({"input": "x", "tool_choice": "required"}, "tool_choice"),
        ({"input": [{"type": "message", "role": "robot", "content": "x"}]}, "input[0].role"),
        ({"input": [{"role": "user", "content": [{"type": "input_video"}]}]}, "input[0].content[0].type"),
        ({"input": [{"type": "computer_call"}]}, "input[0].type"),
        ({"input": "x", "previous_response_id": "resp_none"}, "previous_response_id"),
        ({"input": "x", "previous_response_id": "resp_\x00"}, "previous_response_id"),
        ({"input": "x", "text": {"format": {"type": "yaml"}}}, "text.format.type"),
        ({"input": "x", "metadata": {"a": 1}}, "metadata"),
        ({"input": [{"type": "mcp_approval_response", "approval_request_id": "mcpr_1", "approve": True}]}, "input"),
    ],
)
async def test_bad_requests_name_the_parameter(api: Api, body: dict[str, Any], param: str):
    """Every field that cannot be honoured is refused with 400 and its name."""
    with pytest.raises(openai.BadRequestError) as refused:
        await api.client.post("/responses", body={"model": "coder"} | body, cast_to=object)
    assert refused.value.param == param
    assert refused.value.type == "invalid_request_error"
    assert not api.inference.bodies


async def test_stored_responses_can_be_read_listed_and_deleted(api: Api):
    """Retrieve, input items in pages, cancel and delete work as OpenAI's, for the tenant alone."""
    api.say(Said(text="Four."))
    items = [{"role": "user", "content": f"{number}?"} for number in range(5)]
    made = await api.client.responses.create(model="coder", input=items)
    other = AsyncOpenAI(api_key="ten_b", base_url=f"{api.url}/v1", max_retries=0)
    with pytest.raises(openai.NotFoundError):
        await other.responses.retrieve(made.id)
    assert await api.client.responses.retrieve(made.id) == made
    listed = [item async for item in api.client.responses.input_items.list(made.id, limit=2, order="asc")]
    assert [item.content[0].text for item in listed] == [f"{number}?" for number in range(5)]
    for item in listed:
        ITEM.validate_python(json.loads(item.to_json()), strict=True)
    newest = await api.client.responses.input_items.list(made.id, limit=1)
    assert newest.data[0].content[0].text == "4?"
    with pytest.raises(openai.BadRequestError):
        await api.client.responses.cancel(made.id)
    with pytest.raises(openai.BadRequestError):
        await api.client.responses.retrieve(made.id, stream=True)
    with pytest.raises(openai.NotFoundError):
        await other.responses.delete(made.id)
    await api.client.responses.delete(made.id)
    with pytest.raises(openai.NotFoundError):
        await api.client.responses.retrieve(made.id)
    with pytest.raises(openai.BadRequestError) as gone:
        await api.client.responses.create(model="coder", input="x", previous_response_id=made.id)
    assert gone.value.code == "previous_response_not_found"


async def test_store_false_keeps_nothing(api: Api):
    """A response that is not to be stored cannot be read or continued."""
    api.say(Said(text="Four."))
    made = await api.client.responses.create(model="coder", input="2 + 2?", store=False)
    with pytest.raises(openai.NotFoundError):
        await api.client.responses.retrieve(made.id)
    assert made.store is False


async def test_items_can_be_referred_to_by_id(api: Api):
    """``item_reference`` finds stored input and output items of the same tenant."""
    api.say(Said(text="Four."), Said(text="Sure."))
    made = await api.client.responses.create(model="coder", input="2 + 2?")
    asked = (await api.client.responses.input_items.list(made.id)).data[0]
    references = [{"type": "item_reference", "id": one} for one in (asked.id, made.output[0].id)]
    await api.client.responses.create(model="coder", input=[*references, {"role": "user", "content": "Sure?"}])
    assert api.inference.bodies[1]["messages"] == [
        {"role": "user", "content": "2 + 2?"},
        {"role": "assistant", "content": "Four."},
        {"role": "user", "content": "Sure?"},
    ]
    with pytest.raises(openai.NotFoundError):
        await api.client.responses.create(model="coder", input=[{"type": "item_reference", "id": "msg_none"}])


async def test_unknown_fields_reach_the_engine_untouched(api: Api):
    """Sampling fields of the engine pass through as they stand."""
    api.say(Said(text="Four."))
    await api.client.responses.create(
        model="coder", input="x", extra_body={"top_k": 5, "seed": 7, "unheard_of": {"a": [1.5, None]}}
    )
    body = api.inference.bodies[0]
    assert (body["top_k"], body["seed"], body["unheard_of"]) == (5, 7, {"a": [1.5, None]})
    assert not body.keys() & {"input", "store", "metadata"}


async def test_headers_mean_what_they_mean_on_chat(api: Api):
    """Episode, consent and idempotency headers reach every model call of the response."""
    api.say(Said(calls=[CODE_CALL]), Said(text="Done."))
    headers = {"x-hone-episode-id": "ep_mine", "x-hone-train": "false", "idempotency-key": "once"}
    await api.client.responses.create(model="coder", input="x", tools=[CODE_TOOL], extra_headers=headers)
    assert [call.episode_id for call in api.inference.calls] == ["ep_mine", "ep_mine"]
    assert [call.idempotency_key for call in api.inference.calls] == ["once", "once:1"]
    assert not any(call.consent for call in api.inference.calls)


async def test_leaving_ends_the_models_call(api: Api):
    """A client that goes away, from a stream or from a whole answer, ends the exchange and the session."""
    for stream in (True, False):
        api.say(Said(text="Four", hang=True))
        asking = asyncio.create_task(
            api.client.responses.create(model="coder", input="x", tools=[CODE_TOOL], stream=stream)
        )
        if stream:
            answer = await asking
            async for event in answer:
                if event.type == "response.output_text.delta":
                    break
            await answer.close()
        else:
            while len(api.inference.exchanges) < 2:
                await asyncio.sleep(0.01)
            asking.cancel()
        for _ in range(500):
            if api.hosted.open_sessions == 0:
                break
            await asyncio.sleep(0.01)
        assert api.hosted.open_sessions == 0
        assert api.inference.exchanges[-1].left_early


async def test_truncation_auto_drops_the_oldest(api: Api):
    """With ``truncation: auto`` a conversation that does not fit loses its oldest part; without it, it is refused."""
    items: list[Any] = [{"role": "system", "content": "Rules."}]
    for number in range(6):
        items += [{"role": "user", "content": f"{number}?"}, {"role": "assistant", "content": f"{number}."}]
    items.append({"role": "user", "content": "last?"})
    api.inference.most_messages = 6
    api.say(Said(text="ok"))
    with pytest.raises(openai.BadRequestError):
        await api.client.responses.create(model="coder", input=items)
    await api.client.responses.create(model="coder", input=items, truncation="auto")
    messages = api.inference.bodies[0]["messages"]
    assert messages[0] == {"role": "system", "content": "Rules."}
    assert messages[-1]["content"] == "last?"
    assert len(messages) <= 6


async def test_log_probs_come_where_they_are_asked_for(api: Api):
    """``message.output_text.logprobs`` asks the engine for them and puts them into parts and deltas."""
    api.say(Said(text="Four", logprobs=True))
    include = ["message.output_text.logprobs"]
    events = await api.events(input="x", include=include, top_logprobs=2)
    assert (api.inference.bodies[0]["logprobs"], api.inference.bodies[0]["top_logprobs"]) == (True, 2)
    part = events[-1]["response"]["output"][0]["content"][0]
    assert [one["logprob"] for one in part["logprobs"]] == [-0.5, -0.5]


async def test_keys_are_checked(api: Api):
    """Without a valid key every route answers 401."""
    nobody = AsyncOpenAI(api_key="none", base_url=f"{api.url}/v1", max_retries=0)
    with pytest.raises(openai.AuthenticationError):
        await nobody.responses.create(model="coder", input="x")
    with pytest.raises(openai.AuthenticationError):
        await nobody.responses.retrieve("resp_1")
