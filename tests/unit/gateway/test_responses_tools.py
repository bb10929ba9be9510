"""Tools of a Responses request: who runs them, how they are offered, and who is asked first."""

import asyncio
import json
from typing import Any

import pytest

from core.errors import InvalidRequest
from core.stored_response import StoredResponse
from gateway.hosted_tools.base import ToolDefinition
from gateway.responses_api.archive import redacted
from gateway.responses_api.outbox import Outbox
from gateway.responses_api.request import parse_responses_request
from gateway.responses_api.tools import Offer, chat_choice, declared_tools, offered
from gateway.responses_api.writer import item_id, response_of_item

CODE = ToolDefinition("code_interpreter", "code_interpreter", "", {"type": "object"})
SEARCH = ToolDefinition("mcp", "docs_search", "", {"type": "object"}, "docs", "search", {"readOnlyHint": True})
WRITE = ToolDefinition("mcp", "docs_write", "", {"type": "object"}, "docs", "write")
FUNCTION = {"type": "function", "name": "weather", "parameters": {"type": "object"}}
DECLARATIONS = [
    FUNCTION,
    {"type": "code_interpreter", "container": "cntr_1"},
    {"type": "mcp", "server_label": "docs"},
]


def offer_of(*tools: dict[str, Any]) -> Offer:
    """These tools with all definitions of the hosted ones."""
    return offered(declared_tools(tools), [CODE, SEARCH, WRITE], [])


def chosen(choice: Any) -> tuple[list[str], Any]:
    """The names that are offered, and the chat tool choice."""
    body = json.dumps({"model": "m", "input": "x", "tools": DECLARATIONS, "tool_choice": choice}).encode()
    tools, wanted = chat_choice(parse_responses_request(body), offer_of(*DECLARATIONS))
    return [tool["function"]["name"] for tool in tools], wanted


ALL = ["weather", "code_interpreter", "docs_search", "docs_write"]


@pytest.mark.parametrize(
    ("choice", "names", "wanted"),
    [
        ("auto", ALL, "auto"),
        ("none", ALL, "none"),
        ({"type": "function", "name": "weather"}, ALL, "weather"),
        ({"type": "code_interpreter"}, ALL, "code_interpreter"),
        ({"type": "mcp", "server_label": "docs", "name": "write"}, ALL, "docs_write"),
        ({"type": "mcp", "server_label": "docs"}, ["docs_search", "docs_write"], "required"),
        ({"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "weather"}]},
         ["weather"], "required"),
        ({"type": "allowed_tools", "mode": "auto", "tools": []}, [], "none"),
    ],
)  # fmt: skip
def test_every_tool_choice_has_a_chat_form(choice: Any, names: list[str], wanted: str):
    """Modes, functions, hosted tools, servers and allowed tools become what chat completions understand."""
    named = {"type": "function", "function": {"name": wanted}}
    assert chosen(choice) == (names, wanted if wanted in ("auto", "none", "required") else named)


@pytest.mark.parametrize(
    "choice", ["maybe", {"type": "function", "name": "no"}, {"type": "shell"}, {"type": "mcp", "name": "no"}]
)
def test_a_choice_of_what_is_not_there_is_refused(choice: Any):
    """A choice that names nothing on offer is the caller's error."""
    with pytest.raises(InvalidRequest) as refused:
        chosen(choice)
    assert refused.value.param == "tool_choice"


@pytest.mark.parametrize(
    ("rule", "search", "write"),
    [
        (None, True, True),
        ("always", True, True),
        ("never", False, False),
        ({"never": {"tool_names": ["search"]}}, False, True),
        ({"never": {"read_only": True}}, False, True),
        ({"always": {"tool_names": ["write"]}, "never": {"tool_names": ["search", "write"]}}, False, True),
        ({"never": {}}, True, True),
    ],
)
def test_approval_is_asked_unless_it_is_waived(rule: Any, search: bool, write: bool):
    """Without a rule the client is always asked; filters go by name and by what the server calls read-only."""
    offer = offer_of({"type": "mcp", "server_label": "docs", "require_approval": rule})
    assert (offer.needs_approval(SEARCH), offer.needs_approval(WRITE)) == (search, write)


def test_places_and_containers_are_the_requests_own():
    """Errors about hosted tools name the place in the request, and two containers are refused."""
    declared = declared_tools(DECLARATIONS)
    assert declared.container == "cntr_1"
    assert declared.place_of("tools[1].server_url") == "tools[2].server_url"
    assert declared.place_of("input") == "input"
    with pytest.raises(InvalidRequest):
        declared_tools([*DECLARATIONS, {"type": "code_interpreter", "container": "cntr_2"}])
    with pytest.raises(InvalidRequest):
        offer_of(FUNCTION | {"name": "docs_search"})


def test_item_ids_lead_to_their_response():
    """An item's id names the response that it belongs to; other ids lead nowhere."""
    response_id = "resp_01kabcdefghjkmnpqrstvwxyz0"
    for given in (True, False):
        assert response_of_item(item_id("message", response_id, 3, given=given)) == response_id
    assert response_of_item("msg_1") is None
    assert response_of_item("") is None


def test_redaction_leaves_ids_and_times():
    """Personal data goes from everything that was said, and nothing else changes."""

    class Hider:
        def redact(self, text: str) -> str:
            return text.replace("secret", "<KIND>")

    item = {
        "type": "function_call",
        "id": "fc_secret",
        "call_id": "secret",
        "name": "f",
        "arguments": '{"a": "secret"}',
    }
    stored = StoredResponse(
        id="resp_1",
        tenant_id="ten_a",
        episode_id="ep_a",
        response={
            "id": "resp_1",
            "created_at": 1796068800,
            "output": [item],
            "instructions": "secret",
            "metadata": {},
            "user": "secret",
            "safety_identifier": "secret",
            "prompt_cache_key": "secret",
            "tools": [{"type": "function", "name": "f", "description": "secret"}],
            "tool_choice": {"type": "mcp", "server_label": "secret"},
            "text": {"format": {"type": "json_schema", "name": "a", "schema": {"enum": ["secret"]}}},
            "error": {"code": "server_error", "message": "secret"},
            "unknown": "secret",
            "usage": {"total_tokens": 123456789},
        },
        input_items=({"type": "message", "id": "the secret", "content": [{"type": "input_text", "text": "secret"}]},),
        messages=({"role": "user", "content": "secret"},),
    )
    kept = redacted(stored, Hider())
    assert kept.response["output"] == [item | {"arguments": '{"a": "<KIND>"}'}]
    assert kept.response["created_at"] == 1796068800
    assert kept.response["instructions"] == "<KIND>"
    assert "secret" not in json.dumps({name: one for name, one in kept.response.items() if name != "output"})
    assert kept.response["tools"][0]["name"] == "f"
    assert kept.response["usage"] == {"total_tokens": 123456789}
    assert kept.input_items[0]["id"] == "the <KIND>"
    assert kept.input_items[0]["content"] == [{"type": "input_text", "text": "<KIND>"}]
    assert kept.messages[0]["content"] == "<KIND>"


async def test_a_slow_reader_holds_up_the_writer():
    """The outbox joins what waits, makes its writer wait when it is full, and ends empty."""
    outbox = Outbox(limit=4)
    await outbox.put(b"ab")
    await outbox.put(b"cd")
    waiting = asyncio.create_task(outbox.put(b"ef"))
    await asyncio.sleep(0)
    assert not waiting.done()
    assert await outbox.take() == b"abcd"
    await waiting
    outbox.close()
    assert await outbox.take() == b"ef"
    assert await outbox.take() == b""
