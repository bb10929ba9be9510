"""Pydantic AI: agents with an output type and with a tool."""

from typing import Any, Literal

from pydantic import BaseModel
from pydantic_ai import Agent, NativeOutput, Tool
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider
from scenarios import QUESTION, WEATHER, Calls, Place, run

SETTINGS = {"temperature": 0, "max_tokens": 64}


class Answer(BaseModel):
    """A structured answer."""

    city: Literal["Ulm", "Bonn"]


def weather(city: Literal["Ulm", "Bonn"]) -> str:
    """The weather of a city."""
    return WEATHER[city]


def agent(place: Place, *, responses: bool = False, **options: Any) -> Agent:
    provider = OpenAIProvider(base_url=place.base_url, api_key=place.key)
    model = (OpenAIResponsesModel if responses else OpenAIChatModel)(place.model, provider=provider)
    return Agent(model, model_settings=SETTINGS, **options)


async def text(place: Place) -> Calls:
    result = await agent(place, instructions="Be brief.").run(QUESTION, model_settings={"max_tokens": 12})
    assert result.output and result.usage.output_tokens == 12
    return Calls(1)


async def stream(place: Place) -> Calls:
    async with agent(place).run_stream(QUESTION, model_settings={"max_tokens": 12}) as result:
        pieces = [piece async for piece in result.stream_text(delta=True, debounce_by=None)]
    assert len(pieces) > 4 and "".join(pieces)
    return Calls(1)


async def output_type(place: Place) -> Calls:
    result = await agent(place, output_type=NativeOutput(Answer)).run(QUESTION)
    assert result.output.city in WEATHER
    return Calls(1)


async def tool(place: Place) -> Calls:
    """The model is made to call; afterwards it answers in words."""
    asked = agent(place, tools=[Tool(weather, strict=True)])
    node_tools: list[str] = []
    async with asked.iter(QUESTION, model_settings={"tool_choice": ["weather"]}) as running:
        async for node in running:
            response = getattr(node, "model_response", None)
            node_tools += [] if response is None else [call.tool_name for call in response.tool_calls]
            if node_tools:
                break
    assert node_tools == ["weather"]
    return Calls(1)


async def responses(place: Place) -> Calls:
    result = await agent(place, responses=True, output_type=NativeOutput(Answer)).run(QUESTION)
    assert result.output.city in WEATHER
    return Calls(1, "responses")


if __name__ == "__main__":
    run("pydantic-ai-slim", text, stream, output_type, tool, responses)
