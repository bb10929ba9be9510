"""Pydantic AI: agents with an output type and with a tool."""

from typing import Any, Literal

from pydantic import BaseModel
from pydantic_ai import Agent, NativeOutput, RunContext, Tool, ToolOutput
from pydantic_ai.capabilities import PrepareOutputTools, PrepareTools
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.tools import ToolDefinition
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
    """A function tool first and the output's tool afterwards: a small model would not choose by itself."""

    async def first(context: RunContext, tools: list[ToolDefinition]) -> list[ToolDefinition]:
        return tools if context.run_step == 1 else []

    async def later(context: RunContext, tools: list[ToolDefinition]) -> list[ToolDefinition]:
        return tools if context.run_step > 1 else []

    asked = agent(
        place,
        output_type=ToolOutput(Answer, strict=True),
        tools=[Tool(weather, strict=True)],
        capabilities=[PrepareTools(first), PrepareOutputTools(later)],
    )
    result = await asked.run(QUESTION)
    called = [part.tool_name for message in result.all_messages() for part in message.parts if is_call(part)]
    assert called == ["weather", "final_result"] and result.output.city in WEATHER
    return Calls(2)


def is_call(part: object) -> bool:
    return getattr(part, "part_kind", "") == "tool-call"


async def responses(place: Place) -> Calls:
    result = await agent(place, responses=True, output_type=NativeOutput(Answer)).run(QUESTION)
    assert result.output.city in WEATHER
    return Calls(1, "responses")


if __name__ == "__main__":
    run("pydantic-ai-slim", text, stream, output_type, tool, responses)
