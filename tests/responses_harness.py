"""A running Responses API with scripted parts, and a reader of its streams, for tests."""

import json
from typing import Any

import aiohttp
from openai import AsyncOpenAI
from openai.types.responses import ResponseStreamEvent
from pydantic import BaseModel, TypeAdapter

from tests.responses_fakes import FakeHostedTools, FakeInference, Said

EVENT = TypeAdapter(ResponseStreamEvent)
WEATHER = {"type": "function", "name": "weather", "parameters": {"type": "object"}, "strict": True}
CODE_TOOL = {"type": "code_interpreter", "container": {"type": "auto"}}
SHELL_TOOL = {"type": "shell", "environment": {"type": "container_auto"}}
MCP_TOOL = {"type": "mcp", "server_label": "docs", "server_url": "https://docs.example", "require_approval": "never"}
CODE_CALL = ("code_interpreter", json.dumps({"code": 'print("é\\n")'}))


class Api:
    """The running application and its scripted parts."""

    def __init__(self, url: str, inference: FakeInference, hosted: FakeHostedTools) -> None:
        self.url = url
        self.inference = inference
        self.hosted = hosted
        self.client = AsyncOpenAI(api_key="ten_a", base_url=f"{url}/v1", max_retries=0)

    def say(self, *said: Said) -> None:
        """What the model answers next."""
        self.inference.script += said

    async def events(self, **body: Any) -> list[dict[str, Any]]:
        """The raw events of a stream, each checked against the client's types."""
        headers = {"authorization": "Bearer ten_a"}
        found = []
        async with aiohttp.ClientSession() as http:
            answer = await http.post(
                f"{self.url}/v1/responses", json={"model": "coder", "stream": True} | body, headers=headers
            )
            assert answer.status == 200, await answer.text()
            for block in (await answer.text()).strip().split("\n\n"):
                name, _, data = block.partition("\n")
                event = json.loads(data.removeprefix("data: "))
                assert name == f"event: {event['type']}"
                assert not unknown_fields(EVENT.validate_python(event, strict=True))
                found.append(event)
        assert [event["sequence_number"] for event in found] == list(range(len(found)))
        return found


def unknown_fields(value: Any) -> list[str]:
    """Names that the client's types do not have, anywhere in a value."""
    if isinstance(value, list):
        return [name for one in value for name in unknown_fields(one)]
    if not isinstance(value, BaseModel):
        return []
    found = list(value.model_extra or ())
    for name in type(value).model_fields:
        found += unknown_fields(getattr(value, name))
    # Earlier clients have the name of the function in this event, and need it.
    known = {"name"} if value.__class__.__name__ == "ResponseFunctionCallArgumentsDoneEvent" else set()
    return [name for name in found if name not in known | {"store"}]


def kinds(events: list[dict[str, Any]]) -> list[str]:
    """Event types without their common beginning, repeats once."""
    names = [event["type"].removeprefix("response.") for event in events]
    return [name for number, name in enumerate(names) if number == 0 or names[number - 1] != name]
