"""LiteLLM as a library, with the gateway as a custom OpenAI and as a custom Anthropic endpoint."""

import json
import os

from scenarios import CITY_SCHEMA, QUESTION, WEATHER, Calls, Place, run

# Its table of prices would be fetched at import otherwise.
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
import litellm

ASKED = [{"role": "user", "content": QUESTION}]
SHORT = {"max_tokens": 12, "temperature": 0}
TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": CITY_SCHEMA, "strict": True}}]


def endpoint(place: Place) -> dict[str, str]:
    return {"model": f"openai/{place.model}", "api_base": place.base_url, "api_key": place.key}


def completion(place: Place) -> Calls:
    answer = litellm.completion(**endpoint(place), messages=ASKED, **SHORT)
    assert answer.choices[0].message.content and answer.usage.completion_tokens == 12
    return Calls(1)


async def asynchronous(place: Place) -> Calls:
    answer = await litellm.acompletion(**endpoint(place), messages=ASKED, **SHORT)
    assert answer.choices[0].message.content
    return Calls(1)


def stream(place: Place) -> Calls:
    chunks = list(litellm.completion(**endpoint(place), messages=ASKED, stream=True, **SHORT))
    whole = litellm.stream_chunk_builder(chunks, messages=ASKED)
    assert len(chunks) > 4 and whole.choices[0].message.content and whole.choices[0].finish_reason == "length"
    return Calls(1)


def tools(place: Place) -> Calls:
    answer = litellm.completion(
        **endpoint(place), messages=ASKED, tools=TOOLS, tool_choice="required", max_tokens=64, temperature=0
    )
    call = answer.choices[0].message.tool_calls[0]
    assert json.loads(call.function.arguments)["city"] in WEATHER
    return Calls(1)


def responses(place: Place) -> Calls:
    answer = litellm.responses(**endpoint(place), input=QUESTION, max_output_tokens=16, temperature=0)
    assert answer.output[0].content[0].text
    return Calls(1, "responses")


def messages(place: Place) -> Calls:
    answer = litellm.completion(
        model=f"anthropic/{place.model}", api_base=place.url, api_key=place.key, messages=ASKED, **SHORT
    )
    assert answer.choices[0].message.content
    return Calls(1, "messages")


if __name__ == "__main__":
    run("litellm", completion, asynchronous, stream, tools, responses, messages)
