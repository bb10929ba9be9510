"""Items of the Responses API and chat messages."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.errors import InvalidRequest
from gateway.responses_api.calls import FunctionCall
from gateway.responses_api.messages import conversation_of, shortened, with_instructions
from gateway.responses_api.request import parse_responses_request
from gateway.responses_api.turn import TurnReader
from gateway.responses_api.writer import ResponseWriter

TEXT = st.text(min_size=1, max_size=20)
CALL = st.tuples(st.sampled_from(["weather", "search"]), st.dictionaries(TEXT, TEXT, max_size=2).map(json.dumps))
REQUEST = parse_responses_request(b'{"model": "coder", "input": "x"}')

KEYS = [
    "type", "role", "content", "text", "call_id", "output", "outputs", "action", "id", "outcome", "summary",
    "arguments", "name", "error", "reason", "refusal", "image_url", "logs", "commands", "code", "approval_request_id",
]  # fmt: skip


@st.composite
def conversations(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Chat messages as an agent and a model exchange them."""
    messages: list[dict[str, Any]] = []
    number = 0
    for _ in range(draw(st.integers(1, 4))):
        messages.append({"role": "user", "content": draw(TEXT)})
        for _ in range(draw(st.integers(0, 2))):
            assistant: dict[str, Any] = {"role": "assistant"}
            if draw(st.booleans()):
                assistant["reasoning"] = draw(TEXT)
            assistant["content"] = draw(st.none() | TEXT)
            calls = draw(st.lists(CALL, min_size=1, max_size=3))
            assistant["tool_calls"] = [
                {
                    "id": f"call_{number}_{place}",
                    "type": "function",
                    "function": {"name": name, "arguments": arguments},
                }
                for place, (name, arguments) in enumerate(calls)
            ]
            number += 1
            messages.append(assistant)
            messages += [
                {"role": "tool", "tool_call_id": call["id"], "content": draw(TEXT)}
                for call in assistant["tool_calls"]
            ]
        messages.append({"role": "assistant", "content": draw(TEXT)})
    return messages


def items_of(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The items by which the API would show these messages."""
    items: list[dict[str, Any]] = []
    for message in messages:
        if message["role"] == "user":
            items.append({"role": "user", "content": [{"type": "input_text", "text": message["content"]}]})
        elif message["role"] == "tool":
            call_id = message["tool_call_id"]
            items.append({"type": "function_call_output", "call_id": call_id, "output": message["content"]})
        else:
            writer = ResponseWriter(REQUEST, "resp_01kabcdefghjkmnpqrstvwxyz0", listening=False)
            reader = TurnReader(writer, lambda call_id, name, writer=writer: FunctionCall(writer, call_id, name))
            answer = {"choices": [{"message": message, "finish_reason": "stop"}]}
            reader.whole(json.dumps(answer).encode())
            assert reader.end().message == message
            items += writer.response["output"]
    return items


@given(conversations())
def test_items_of_a_conversation_give_the_conversation(messages: list[dict[str, Any]]):
    """What the model said and was told comes back message by message when its items are sent in again."""
    assert conversation_of(items_of(messages)).messages == messages


@given(conversations(), TEXT)
def test_shortening_keeps_the_end_and_the_rules(messages: list[dict[str, Any]], rules: str):
    """A shortened conversation is shorter, keeps system messages and its end, and starts with a user's word."""
    whole = [{"role": "system", "content": rules}, *messages]
    fewer = shortened(whole)
    if fewer is None:
        assert [message["role"] for message in messages].count("user") == 1
        return
    assert len(fewer) < len(whole)
    assert fewer[0] == whole[0]
    assert fewer[1]["role"] == "user"
    assert fewer[1:] == whole[-len(fewer) + 1 :]


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | TEXT,
        lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(KEYS), inner),
        max_leaves=8,
    )
)
def test_any_item_is_understood_or_refused(value: Any):
    """Whatever JSON an input item holds, it becomes messages or InvalidRequest, never another error."""
    for kind in (
        "message",
        "reasoning",
        "function_call_output",
        "shell_call",
        "shell_call_output",
        "mcp_call",
        "code_interpreter_call",
        "local_shell_call",
        "local_shell_call_output",
        "item",
    ):
        item = (value if isinstance(value, dict) else {"content": value, "output": value}) | {"type": kind}
        body = json.dumps({"model": "m", "input": [item]}).encode()
        try:
            conversation_of(parse_responses_request(body).input)
        except InvalidRequest as error:
            assert error.param is not None


def test_contents_become_chat_parts():
    """Images, files and several texts become the parts that chat completions have for them."""
    content = [
        {"type": "input_text", "text": "What is this?"},
        {"type": "input_image", "image_url": "data:image/png;base64,AA==", "detail": "low"},
        {"type": "input_file", "filename": "a.pdf", "file_data": "data:application/pdf;base64,AA=="},
    ]
    message = conversation_of([{"role": "user", "content": content}]).messages[0]
    assert message["content"] == [
        {"type": "text", "text": "What is this?"},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA==", "detail": "low"}},
        {"type": "file", "file": {"filename": "a.pdf", "file_data": "data:application/pdf;base64,AA=="}},
    ]
    with pytest.raises(InvalidRequest) as refused:
        conversation_of([{"role": "user", "content": [{"type": "input_image", "file_id": "file_1"}]}])
    assert refused.value.param == "input[0].content[0]"


def test_developers_speak_as_the_system_and_all_of_it_comes_first():
    """Instructions and the system messages that open a conversation are one system message."""
    items = [
        {"role": "developer", "content": "Be kind."},
        {"role": "user", "content": "Hi"},
        {"role": "system", "content": "Later."},
    ]
    assert with_instructions(conversation_of(items).messages, "Be brief.") == [
        {"role": "system", "content": "Be brief.\n\nBe kind."},
        {"role": "user", "content": "Hi"},
        {"role": "system", "content": "Later."},
    ]


def test_hosted_calls_sent_back_are_calls_with_results():
    """Code and MCP items, which hold their own results, become a call and a tool message each."""
    items = [
        {"type": "mcp_list_tools", "id": "mcpl_1", "server_label": "docs", "tools": []},
        {"type": "code_interpreter_call", "id": "ci_1", "code": "1", "outputs": [{"type": "logs", "logs": "1"}]},
        {
            "type": "mcp_call",
            "id": "mcp_1",
            "server_label": "docs",
            "name": "search",
            "arguments": "{}",
            "output": "x",
        },
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Done."}]},
    ]
    messages = conversation_of(items, name_of=lambda kind, label, name: f"{label}_{name}" if label else kind).messages
    assert [message["role"] for message in messages] == ["assistant", "tool", "assistant", "tool", "assistant"]
    assert messages[0]["tool_calls"][0]["function"] == {"name": "code_interpreter", "arguments": '{"code": "1"}'}
    assert messages[2]["tool_calls"][0]["function"]["name"] == "docs_search"
    assert (messages[1]["content"], messages[3]["content"]) == ("1", "x")
