"""Anthropic's SDK on the Messages API, and the body that a coding agent's command line sends."""

import json
from pathlib import Path

import anthropic
from anthropic import Anthropic, AsyncAnthropic
from scenarios import CITY_SCHEMA, QUESTION, WEATHER, Calls, Place, run

ASKED = [{"role": "user", "content": QUESTION}]
TOOLS = [{"name": "weather", "description": "Weather", "input_schema": CITY_SCHEMA, "strict": True}]
GREEDY = {"temperature": 0}
"""A field that the API has and this SDK's methods do not name."""
AGENT_REQUEST = Path(__file__).parent / "agent_request.json"


def client(place: Place) -> Anthropic:
    return Anthropic(base_url=place.url, api_key=place.key, max_retries=0, timeout=300)


def create(place: Place) -> Calls:
    message = client(place).messages.create(
        model=place.model, system="Be brief.", messages=ASKED, max_tokens=12, extra_body=GREEDY
    )
    assert message.type == "message" and message.role == "assistant" and message.stop_reason == "max_tokens"
    assert message.content[0].type == "text" and message.content[0].text
    assert message.usage.input_tokens > 0 and message.usage.output_tokens == 12
    return Calls(1, "messages")


async def asynchronous(place: Place) -> Calls:
    async with AsyncAnthropic(base_url=place.url, api_key=place.key, timeout=300) as asking:
        message = await asking.messages.create(model=place.model, messages=ASKED, max_tokens=8)
    assert message.content[0].text
    return Calls(1, "messages")


def stream(place: Place) -> Calls:
    with client(place).messages.stream(model=place.model, messages=ASKED, max_tokens=12, extra_body=GREEDY) as events:
        pieces = list(events.text_stream)
        final = events.get_final_message()
    assert len(pieces) > 4 and "".join(pieces) == final.content[0].text
    assert final.usage.output_tokens == 12 and final.stop_reason == "max_tokens"
    return Calls(1, "messages")


def tools(place: Place) -> Calls:
    asking = client(place).messages
    asked = {"model": place.model, "tools": TOOLS, "extra_body": GREEDY}
    first = asking.create(**asked, messages=ASKED, tool_choice={"type": "any"}, max_tokens=64)
    use = next(block for block in first.content if block.type == "tool_use")
    assert first.stop_reason == "tool_use" and use.name == "weather"
    result = {"type": "tool_result", "tool_use_id": use.id, "content": WEATHER[use.input["city"]]}
    messages = [*ASKED, {"role": "assistant", "content": first.content}, {"role": "user", "content": [result]}]
    second = asking.create(**asked, messages=messages, tool_choice={"type": "none"}, max_tokens=12)
    assert second.content[0].text
    return Calls(2, "messages")


def tools_stream(place: Place) -> Calls:
    with client(place).messages.stream(
        model=place.model,
        messages=ASKED,
        tools=TOOLS,
        tool_choice={"type": "tool", "name": "weather"},
        max_tokens=64,
        extra_body=GREEDY,
    ) as events:
        kinds = {event.type for event in events}
        final = events.get_final_message()
    assert "input_json" in kinds
    assert next(block for block in final.content if block.type == "tool_use").input["city"] in WEATHER
    return Calls(1, "messages")


def count_tokens(place: Place) -> Calls:
    counted = client(place).messages.count_tokens(model=place.model, messages=ASKED)
    answered = client(place).messages.create(model=place.model, messages=ASKED, max_tokens=1)
    assert counted.input_tokens == answered.usage.input_tokens
    return Calls(1, "messages")


def errors(place: Place) -> Calls:
    try:
        client(place).messages.create(model="no-such-model", messages=ASKED, max_tokens=4)
    except anthropic.NotFoundError as error:
        assert error.body["type"] == "error" and error.body["error"]["type"] == "not_found_error"
        return Calls(0, "messages")
    raise AssertionError("NotFoundError was expected")


def coding_agent(place: Place) -> Calls:
    body = json.loads(AGENT_REQUEST.read_text()) | {"model": place.model}
    unnamed = {name: body.pop(name) for name in ("temperature", "thinking")}
    del body["stream"]
    with client(place).messages.stream(
        **body,
        extra_headers={"anthropic-beta": "interleaved-thinking-2025-05-14", "user-agent": "coding-agent (external)"},
        extra_query={"beta": "true"},
        extra_body=unnamed,
    ) as events:
        kinds = [event.type for event in events]
        final = events.get_final_message()
    assert kinds[0] == "message_start" and kinds[-1] == "message_stop" and final.content
    return Calls(1, "messages")


if __name__ == "__main__":
    run("anthropic", create, asynchronous, stream, tools, tools_stream, count_tokens, errors, coding_agent)
