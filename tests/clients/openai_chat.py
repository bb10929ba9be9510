"""The OpenAI SDK on chat completions and completions, as applications use it."""

import asyncio
import json
from typing import Literal

import openai
from openai import AsyncOpenAI, OpenAI, pydantic_function_tool
from pydantic import BaseModel
from scenarios import PIXEL, QUESTION, WEATHER, Calls, Place, run

ASKED = [{"role": "user", "content": QUESTION}]
SHORT = {"max_tokens": 12, "temperature": 0}


class Weather(BaseModel):
    """The weather of a city."""

    city: Literal["Ulm", "Bonn"]


class Answer(BaseModel):
    """A structured answer."""

    city: Literal["Ulm", "Bonn"]
    wet: bool


TOOLS = [pydantic_function_tool(Weather, name="weather")]


def client(place: Place) -> OpenAI:
    return OpenAI(base_url=place.base_url, api_key=place.key, max_retries=0, timeout=300)


def create(place: Place) -> Calls:
    answer = client(place).chat.completions.create(model=place.model, messages=ASKED, **SHORT)
    choice = answer.choices[0]
    assert answer.object == "chat.completion" and answer.id and answer._request_id
    assert choice.message.role == "assistant" and choice.message.content and choice.finish_reason == "length"
    assert answer.usage.completion_tokens == 12
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + 12
    assert choice.logprobs is None and not (choice.model_extra or {}).get("token_ids")
    return Calls(1)


async def asynchronous(place: Place) -> Calls:
    async with AsyncOpenAI(base_url=place.base_url, api_key=place.key, timeout=300) as several:

        async def ask(number: int) -> str:
            answer = await several.chat.completions.create(
                model=place.model, messages=[{"role": "user", "content": f"Count from {number}."}], **SHORT
            )
            return answer.choices[0].message.content

        answers = await asyncio.gather(*(ask(number) for number in range(4)))
    assert all(answers)
    return Calls(4)


def stream(place: Place) -> Calls:
    chunks = list(
        client(place).chat.completions.create(
            model=place.model, messages=ASKED, stream=True, stream_options={"include_usage": True}, **SHORT
        )
    )
    text = [chunk.choices[0].delta.content for chunk in chunks if chunk.choices and chunk.choices[0].delta.content]
    assert len({chunk.id for chunk in chunks}) == 1 and chunks[0].choices[0].delta.role == "assistant"
    assert len(text) > 4, "the text came in one piece"
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == "length"
    assert chunks[-1].choices == [] and chunks[-1].usage.completion_tokens == 12
    return Calls(1)


async def asynchronous_stream(place: Place) -> Calls:
    async with AsyncOpenAI(base_url=place.base_url, api_key=place.key, timeout=300) as asking:
        pieces = [
            chunk
            async for chunk in await asking.chat.completions.create(
                model=place.model, messages=ASKED, stream=True, **SHORT
            )
        ]
    assert all(chunk.choices for chunk in pieces), "nobody asked for the usage"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in pieces)
    return Calls(1)


def sampling_fields(place: Place) -> Calls:
    answer = client(place).chat.completions.create(
        model=place.model,
        messages=ASKED,
        n=2,
        seed=7,
        temperature=1.0,
        top_p=0.9,
        max_completion_tokens=8,
        logprobs=True,
        top_logprobs=2,
        stop=["zzz"],
        extra_body={"top_k": 20, "min_tokens": 8, "return_token_ids": True},
    )
    assert [choice.index for choice in answer.choices] == [0, 1]
    for choice in answer.choices:
        assert len(choice.logprobs.content) == 8 == len(choice.model_extra["token_ids"])
        assert all(len(item.top_logprobs) == 2 for item in choice.logprobs.content)
    return Calls(2)


def tools(place: Place) -> Calls:
    messages = [{"role": "system", "content": "You know the weather."}, *ASKED]
    asking = client(place)
    first = asking.chat.completions.create(
        model=place.model, messages=messages, tools=TOOLS, tool_choice="required", max_tokens=64, temperature=0
    )
    message = first.choices[0].message
    call = message.tool_calls[0]
    assert first.choices[0].finish_reason == "tool_calls" and call.type == "function" and call.id
    messages += [
        message,
        {
            "role": "tool",
            "tool_call_id": call.id,
            "content": WEATHER[json.loads(call.function.arguments)["city"]],
        },
    ]
    second = asking.chat.completions.create(
        model=place.model, messages=messages, tools=TOOLS, tool_choice="none", **SHORT
    )
    assert second.choices[0].message.content
    return Calls(2)


def tools_stream(place: Place) -> Calls:
    name, arguments, finish = "", "", None
    for chunk in client(place).chat.completions.create(
        model=place.model,
        messages=ASKED,
        tools=TOOLS,
        tool_choice={"type": "function", "function": {"name": "weather"}},
        max_tokens=64,
        temperature=0,
        stream=True,
    ):
        for call in chunk.choices[0].delta.tool_calls or []:
            name += call.function.name or ""
            arguments += call.function.arguments or ""
        finish = chunk.choices[0].finish_reason or finish
    assert name == "weather" and json.loads(arguments)["city"] in WEATHER and finish in ("stop", "tool_calls")
    return Calls(1)


def parse(place: Place) -> Calls:
    asking = client(place)
    answer = asking.chat.completions.parse(
        model=place.model, messages=ASKED, response_format=Answer, max_tokens=64, temperature=0
    )
    assert answer.choices[0].message.parsed.city in WEATHER
    called = asking.chat.completions.parse(
        model=place.model, messages=ASKED, tools=TOOLS, tool_choice="required", max_tokens=64, temperature=0
    )
    assert isinstance(called.choices[0].message.tool_calls[0].function.parsed_arguments, Weather)
    return Calls(2)


def stream_helper(place: Place) -> Calls:
    kinds = set()
    with client(place).chat.completions.stream(
        model=place.model, messages=ASKED, response_format=Answer, max_tokens=64, temperature=0
    ) as events:
        for event in events:
            kinds.add(event.type)
        final = events.get_final_completion()
    assert {"chunk", "content.delta", "content.done"} <= kinds
    assert final.choices[0].message.parsed.city in WEATHER
    return Calls(1)


def completions(place: Place) -> Calls:
    asking = client(place)
    whole = asking.completions.create(model=place.model, prompt="One, two,", max_tokens=6, temperature=0)
    pieces = asking.completions.create(
        model=place.model, prompt="One, two,", max_tokens=6, temperature=0, stream=True
    )
    assert "".join(chunk.choices[0].text for chunk in pieces) == whole.choices[0].text
    return Calls(2, "completions")


def stored(place: Place) -> Calls:
    asking = client(place).chat.completions
    made = asking.create(model=place.model, messages=ASKED, store=True, metadata={"case": "matrix"}, **SHORT)
    assert _soon(lambda: asking.retrieve(made.id)).choices[0].message.content == made.choices[0].message.content
    assert [item.id for item in asking.list(metadata={"case": "matrix"})] == [made.id]
    assert next(iter(asking.messages.list(made.id))).content == QUESTION
    assert asking.update(made.id, metadata={"case": "changed"}).metadata == {"case": "changed"}
    assert asking.delete(made.id).deleted
    _refused(openai.NotFoundError, lambda: asking.retrieve(made.id))
    return Calls(1)


def models(place: Place) -> Calls:
    asking = client(place)
    assert place.model in {model.id for model in asking.models.list()}
    assert asking.models.retrieve(place.model).id == place.model
    return Calls(0)


def errors(place: Place) -> Calls:
    asking = client(place)

    def ask(**changes: object) -> object:
        return asking.chat.completions.create(**({"model": place.model, "messages": ASKED} | SHORT | changes))

    unknown = _refused(openai.NotFoundError, lambda: ask(model="no-such-model"))
    assert unknown.code == "model_not_found"
    assert _refused(openai.BadRequestError, lambda: ask(n=0)).param == "n"
    assert "context" in _refused(openai.BadRequestError, lambda: ask(messages=_long())).message
    stranger = OpenAI(base_url=place.base_url, api_key="sk-nobody", max_retries=0)
    _refused(openai.AuthenticationError, stranger.models.list)
    return Calls(0)


def images(place: Place) -> Calls:
    parts = [
        {"type": "text", "text": "What is this?"},
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PIXEL}"}},
    ]
    asked = [{"role": "user", "content": parts}]
    refused = _refused(
        openai.BadRequestError,
        lambda: client(place).chat.completions.create(model=place.model, messages=asked, **SHORT),
    )
    assert "multimodal" in refused.message and refused.type == "invalid_request_error"
    return Calls(0)


def embeddings(place: Place) -> Calls:
    refused = _refused(
        openai.NotFoundError, lambda: client(place).embeddings.create(model=place.model, input="words")
    )
    assert "embeddings" in refused.message
    return Calls(0)


def tokens(place: Place) -> Calls:
    beside = client(place).with_options(base_url=place.url)
    counted = beside.post("/tokenize", cast_to=object, body={"model": place.model, "prompt": "one two three"})
    back = beside.post("/detokenize", cast_to=object, body={"model": place.model, "tokens": counted["tokens"]})
    assert counted["count"] == len(counted["tokens"]) > 0 and back["prompt"] == "one two three"
    return Calls(0)


def without_grant(place: Place) -> Calls:
    answer = client(place).chat.completions.create(model=place.model, messages=ASKED, **SHORT)
    assert answer.choices[0].message.content
    return Calls(1)


def withdrawn(place: Place) -> Calls:
    answer = client(place).chat.completions.create(
        model=place.model, messages=ASKED, extra_headers={"x-hone-train": "false"}, **SHORT
    )
    assert answer.choices[0].message.content
    return Calls(1)


def _long() -> list[dict[str, str]]:
    return [{"role": "user", "content": "word " * 4000}]


def _refused(kind, call):
    try:
        call()
    except kind as error:
        assert error.message
        return error
    raise AssertionError(f"{kind.__name__} was expected")


def _soon(call):
    """A stored answer can be read a moment later."""
    for _ in range(100):
        try:
            return call()
        except openai.NotFoundError:
            asyncio.run(asyncio.sleep(0.1))
    return call()


if __name__ == "__main__":
    run(
        "openai",
        *(create, asynchronous, stream, asynchronous_stream, sampling_fields, tools, tools_stream, parse),
        *(stream_helper, completions, stored, models, errors, images, embeddings, tokens, without_grant, withdrawn),
    )
