"""The OpenAI Agents SDK: an agent with a function tool, over both APIs."""

from typing import Literal

from agents import (
    Agent,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    SQLiteSession,
    function_tool,
    set_tracing_disabled,
)
from openai import AsyncOpenAI
from pydantic import BaseModel
from scenarios import QUESTION, WEATHER, Calls, Place, run

set_tracing_disabled(True)


class Answer(BaseModel):
    """A structured answer."""

    city: Literal["Ulm", "Bonn"]


@function_tool
def weather(city: Literal["Ulm", "Bonn"]) -> str:
    """The weather of a city."""
    return WEATHER[city]


def agent(place: Place, *, chat: bool, tools: bool = True, **options: object) -> Agent:
    client = AsyncOpenAI(base_url=place.base_url, api_key=place.key, max_retries=0, timeout=300)
    model = (OpenAIChatCompletionsModel if chat else OpenAIResponsesModel)(place.model, client)
    settings = ModelSettings(temperature=0, max_tokens=200, tool_choice="required" if tools else None)
    return Agent(
        name="weather",
        instructions="Be brief.",
        model=model,
        tools=[weather] if tools else [],
        model_settings=settings,
        **options,
    )


async def chat_tool(place: Place) -> Calls:
    result = await Runner.run(agent(place, chat=True), QUESTION, max_turns=4)
    return Calls(_called(result))


async def chat_structured(place: Place) -> Calls:
    result = await Runner.run(agent(place, chat=True, tools=False, output_type=Answer), QUESTION)
    assert result.final_output.city in WEATHER
    return Calls(1)


async def responses_tool(place: Place) -> Calls:
    result = await Runner.run(agent(place, chat=False), QUESTION, max_turns=4)
    return Calls(_called(result), "responses")


async def responses_streamed(place: Place) -> Calls:
    result = Runner.run_streamed(agent(place, chat=False), QUESTION, max_turns=4)
    kinds = {event.type async for event in result.stream_events()}
    assert {"raw_response_event", "run_item_stream_event"} <= kinds
    return Calls(_called(result), "responses")


async def responses_continued(place: Place) -> Calls:
    asking = agent(place, chat=False)
    result = await Runner.run(asking, QUESTION, max_turns=4, auto_previous_response_id=True)
    calls = _called(result)
    assert result.last_response_id
    return Calls(calls, "responses")


async def session(place: Place) -> Calls:
    kept = SQLiteSession("weather")
    asking = agent(place, chat=False, tools=False, output_type=Answer)
    await Runner.run(asking, "Hello", session=kept)
    result = await Runner.run(asking, QUESTION, session=kept)
    assert result.final_output.city in WEATHER and len(await kept.get_items()) == 4
    return Calls(2, "responses")


def _called(result) -> int:
    """How often the model was asked; the tool's result was among what it read."""
    outputs = [item.output for item in result.new_items if item.type == "tool_call_output_item"]
    assert outputs and set(outputs) <= set(WEATHER.values())
    assert isinstance(result.final_output, str)
    return len(result.raw_responses)


if __name__ == "__main__":
    run(
        "openai-agents",
        *(chat_tool, chat_structured, responses_tool, responses_streamed, responses_continued, session),
    )
