"""LangChain's ChatOpenAI with the gateway as its base URL."""

from typing import Any, Literal

from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel
from scenarios import QUESTION, WEATHER, Calls, Place, run


class Answer(BaseModel):
    """A structured answer."""

    city: Literal["Ulm", "Bonn"]


@tool
def weather(city: Literal["Ulm", "Bonn"]) -> str:
    """The weather of a city."""
    return WEATHER[city]


def model(place: Place, **options: Any) -> ChatOpenAI:
    fields = {"max_tokens": 64, "temperature": 0, "max_retries": 0} | options
    return ChatOpenAI(model=place.model, base_url=place.base_url, api_key=place.key, **fields)


def invoke(place: Place) -> Calls:
    answer = model(place, max_tokens=12).invoke([("system", "Be brief."), ("user", QUESTION)])
    assert answer.content and answer.usage_metadata["output_tokens"] == 12
    return Calls(1)


def stream(place: Place) -> Calls:
    pieces = list(model(place, max_tokens=12, stream_usage=True).stream(QUESTION))
    whole = pieces[0]
    for piece in pieces[1:]:
        whole += piece
    assert len(pieces) > 4 and whole.content and whole.usage_metadata["output_tokens"] == 12
    return Calls(1)


def bind_tools(place: Place) -> Calls:
    asking = model(place)
    messages = [HumanMessage(QUESTION)]
    called = asking.bind_tools([weather], tool_choice="weather", strict=True).invoke(messages)
    result = weather.invoke(called.tool_calls[0])
    assert isinstance(result, ToolMessage) and result.content in WEATHER.values()
    answer = asking.invoke([*messages, called, result])
    assert answer.content
    return Calls(2)


def structured_by_schema(place: Place) -> Calls:
    answer = model(place).with_structured_output(Answer, method="json_schema").invoke(QUESTION)
    assert answer.city in WEATHER
    return Calls(1)


def structured_by_tool(place: Place) -> Calls:
    answer = model(place).with_structured_output(Answer, method="function_calling", strict=True).invoke(QUESTION)
    assert answer.city in WEATHER
    return Calls(1)


async def batch(place: Place) -> Calls:
    answers = await model(place, max_tokens=8).abatch([QUESTION, "Hello"])
    assert all(answer.content for answer in answers)
    return Calls(2)


def responses(place: Place) -> Calls:
    answer = model(place, max_tokens=16, use_responses_api=True).invoke(QUESTION)
    assert answer.text
    return Calls(1, "responses")


if __name__ == "__main__":
    run(
        "langchain-openai",
        *(invoke, stream, bind_tools, structured_by_schema, structured_by_tool, batch, responses),
    )
