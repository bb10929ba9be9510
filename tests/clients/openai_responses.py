"""The OpenAI SDK on the Responses API."""

import json
from typing import Literal

import openai
from openai import OpenAI
from pydantic import BaseModel
from scenarios import CITY_SCHEMA, QUESTION, WEATHER, Calls, Place, run

SHORT = {"max_output_tokens": 16, "temperature": 0}
TOOLS = [{"type": "function", "name": "weather", "description": "Weather", "parameters": CITY_SCHEMA, "strict": True}]


class Answer(BaseModel):
    """A structured answer."""

    city: Literal["Ulm", "Bonn"]


def client(place: Place) -> OpenAI:
    return OpenAI(base_url=place.base_url, api_key=place.key, max_retries=0, timeout=300)


def create(place: Place) -> Calls:
    answer = client(place).responses.create(model=place.model, input=QUESTION, instructions="Be brief.", **SHORT)
    assert answer.object == "response" and answer.output_text and answer.output[0].type == "message"
    assert answer.status == "incomplete" and answer.incomplete_details.reason == "max_output_tokens"
    assert answer.usage.output_tokens == 16 and answer.usage.total_tokens > 16
    return Calls(1, "responses")


def stream(place: Place) -> Calls:
    events = list(client(place).responses.create(model=place.model, input=QUESTION, stream=True, **SHORT))
    kinds = [event.type for event in events]
    assert kinds[0] == "response.created" and kinds[-1] in ("response.completed", "response.incomplete")
    assert [event.sequence_number for event in events] == list(range(len(events)))
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert text and text == events[-1].response.output_text
    return Calls(1, "responses")


def stream_helper(place: Place) -> Calls:
    with client(place).responses.stream(
        model=place.model, input=QUESTION, text_format=Answer, max_output_tokens=64, temperature=0
    ) as events:
        kinds = {event.type for event in events}
        final = events.get_final_response()
    assert "response.output_text.delta" in kinds and final.output_parsed.city in WEATHER
    return Calls(1, "responses")


def parse(place: Place) -> Calls:
    answer = client(place).responses.parse(
        model=place.model, input=QUESTION, text_format=Answer, max_output_tokens=64, temperature=0
    )
    assert answer.output_parsed.city in WEATHER and answer.status == "completed"
    return Calls(1, "responses")


def continued(place: Place) -> Calls:
    asking = client(place).responses
    first = asking.create(model=place.model, input=QUESTION, **SHORT)
    second = asking.create(model=place.model, input="And tomorrow?", previous_response_id=first.id, **SHORT)
    assert second.previous_response_id == first.id and second.usage.input_tokens > first.usage.input_tokens
    assert asking.retrieve(second.id).output_text == second.output_text
    assert next(iter(asking.input_items.list(first.id))).content[0].text == QUESTION
    asking.delete(first.id)
    try:
        asking.retrieve(first.id)
    except openai.NotFoundError:
        return Calls(2, "responses")
    raise AssertionError("a deleted response was still there")


def tools(place: Place) -> Calls:
    asking = client(place).responses
    said = [{"role": "user", "content": QUESTION}]
    first = asking.create(
        model=place.model, input=said, tools=TOOLS, tool_choice="required", max_output_tokens=64, temperature=0
    )
    call = next(item for item in first.output if item.type == "function_call")
    weather = WEATHER[json.loads(call.arguments)["city"]]
    said += [*first.output, {"type": "function_call_output", "call_id": call.call_id, "output": weather}]
    second = asking.create(model=place.model, input=said, tools=TOOLS, tool_choice="none", **SHORT)
    assert second.output_text
    return Calls(2, "responses")


if __name__ == "__main__":
    run("openai", create, stream, stream_helper, parse, continued, tools)
