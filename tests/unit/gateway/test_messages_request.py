"""Messages requests as chat completion requests."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.errors import InvalidRequest
from gateway.anthropic_api.answer import message_of
from gateway.anthropic_api.request import read_count_request, read_messages_request

USER = {"role": "user", "content": "hi"}
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)

OBJECTS = st.dictionaries(st.text(max_size=5), JSON, max_size=3)
FIELDS = (
    *("model", "max_tokens", "messages", "system", "tools", "tool_choice", "thinking", "metadata"),
    *("stop_sequences", "stream", "output_config"),
)
FILE_IMAGE = {"type": "image", "source": {"type": "file"}}


def _chat(**fields: Any) -> dict[str, Any]:
    body = {"model": "coder", "max_tokens": 9, "messages": [USER]} | fields
    decoded: dict[str, Any] = msgspec.json.decode(read_messages_request(json.dumps(body).encode()).chat_body)
    return decoded


def _messages(*messages: Any, **fields: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = _chat(messages=list(messages), **fields)["messages"]
    return found


def test_a_plain_request_has_the_same_fields():
    """Model, limits and sampling keep their meaning; stop_sequences and user_id change their name."""
    chat = _chat(
        temperature=0.5, top_p=0.9, top_k=4, stop_sequences=["END"], metadata={"user_id": "u"}, service_tier="auto"
    )
    assert chat == {
        "model": "coder",
        "messages": [USER],
        "max_tokens": 9,
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 4,
        "stop": ["END"],
        "user": "u",
    }


def test_a_field_that_the_api_does_not_know_passes():
    """Engine options such as ``seed`` reach the engine; what steers Anthropic's servers does not."""
    chat = _chat(seed=7, min_p=0.1, betas=["x"], cache_control={"type": "ephemeral"}, context_management={})
    assert (chat["seed"], chat["min_p"]) == (7, 0.1)
    assert not chat.keys() & {"betas", "cache_control", "context_management"}


def test_a_stream_tells_its_usage_from_the_start():
    """A message stream needs the prompt's tokens in its first event."""
    assert _chat(stream=True)["stream_options"] == {"include_usage": True, "continuous_usage_stats": True}
    assert "stream" not in _chat(stream=False)


@pytest.mark.parametrize(
    ("system", "expected"),
    [
        ("be brief", "be brief"),
        (
            [{"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}, {"type": "text", "text": "b"}],
            "a\n\nb",
        ),
        ([{"type": "text", "text": "x-anthropic-billing-header: 1"}, {"type": "text", "text": "b"}], "b"),
    ],
)
def test_a_system_prompt_is_the_first_message(system, expected):
    """Text and text blocks; a client's billing line, different every time, would spoil every prompt's prefix."""
    assert _messages(USER, system=system) == [{"role": "system", "content": expected}, USER]


def test_an_empty_system_prompt_is_none():
    """Nothing is put before the conversation."""
    assert _messages(USER, system="") == _messages(USER, system=[]) == [USER]


def test_images_become_parts():
    """Base64 data becomes a data URL, a URL stays one, beside the text in its order."""
    blocks = [
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "QUJD"}},
        {"type": "text", "text": "what is it?"},
        {"type": "image", "source": {"type": "url", "url": "https://a/b.png"}},
    ]
    assert _messages({"role": "user", "content": blocks})[0]["content"] == [
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,QUJD"}},
        {"type": "text", "text": "what is it?"},
        {"type": "image_url", "image_url": {"url": "https://a/b.png"}},
    ]


def test_documents_and_search_results_become_text():
    """What a client found or attached as text is read as text; other documents are refused."""
    document = {"type": "document", "title": "T", "source": {"type": "text", "data": "words"}}
    result = {
        "type": "search_result",
        "title": "A",
        "source": "https://a",
        "content": [{"type": "text", "text": "b"}],
    }
    assert _messages({"role": "user", "content": [document, result]})[0]["content"] == "T\n\nwords\nA\nhttps://a\nb"
    with pytest.raises(InvalidRequest):
        _messages({"role": "user", "content": [document | {"source": {"type": "base64", "data": "x"}}]})


def test_a_tool_conversation_keeps_its_order():
    """Calls stand on the assistant's message, their results right behind it, and only then what else was said."""
    image = {"type": "image", "source": {"type": "url", "url": "https://a/b.png"}}
    chat = _messages(
        USER,
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": "s"},
                {"type": "redacted_thinking", "data": "x"},
                {"type": "text", "text": "I look."},
                {"type": "tool_use", "id": "t1", "name": "look", "input": {"a": 1}},
                {"type": "tool_use", "id": "t2", "name": "look", "input": {}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "one"}, image]},
                {"type": "tool_result", "tool_use_id": "t2", "content": "no file", "is_error": True},
                {"type": "text", "text": "go on"},
            ],
        },
    )
    assert chat[1]["content"] == "I look." and chat[1]["reasoning"] == "hm"
    assert [(c["id"], json.loads(c["function"]["arguments"])) for c in chat[1]["tool_calls"]] == [
        ("t1", {"a": 1}),
        ("t2", {}),
    ]
    assert chat[2] == {"role": "tool", "tool_call_id": "t1", "content": "one"}
    assert chat[3] == {"role": "tool", "tool_call_id": "t2", "content": "Error: no file"}
    assert [part["type"] for part in chat[4]["content"]] == ["image_url", "text"]
    assert len(chat) == 5


def test_a_tool_result_may_be_empty():
    """A tool that says nothing has answered all the same, and no empty user message is made up."""
    result = {"type": "tool_result", "tool_use_id": "t1"}
    assert _messages(USER, {"role": "user", "content": [result]})[1:] == [
        {"role": "tool", "tool_call_id": "t1", "content": ""}
    ]


def test_a_begun_answer_is_continued():
    """A last assistant message is the beginning of the answer, for messages and for counting."""
    begun = {"role": "assistant", "content": "The answer is"}
    chat = _chat(messages=[USER, begun])
    assert (chat["add_generation_prompt"], chat["continue_final_message"]) == (False, True)
    assert "continue_final_message" not in _chat()
    body = json.dumps({"model": "m", "messages": [USER, begun]}).encode()
    assert msgspec.json.decode(read_count_request(body))["continue_final_message"] is True


def test_system_messages_in_between_stay_where_they_are():
    """Agent CLIs remind the model between the turns."""
    chat = _messages(USER, {"role": "system", "content": [{"type": "text", "text": "remember"}]}, USER)
    assert chat == [USER, {"role": "system", "content": "remember"}, USER]


TOOL = {"name": "look", "description": "Looks.", "input_schema": {"properties": {}}, "cache_control": {}}


def test_tools_become_functions():
    """Name, description and schema; a schema is an object's."""
    assert _chat(tools=[TOOL | {"type": "custom"}])["tools"] == [
        {
            "type": "function",
            "function": {
                "name": "look",
                "parameters": {"type": "object", "properties": {}},
                "description": "Looks.",
            },
        }
    ]


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        ({"type": "auto"}, "auto"),
        ({"type": "any"}, "required"),
        ({"type": "none"}, "none"),
        ({"type": "tool", "name": "look"}, {"type": "function", "function": {"name": "look"}}),
    ],
)
def test_tool_choice(choice, expected):
    """Each kind has its counterpart; calls one at a time where parallel ones are switched off."""
    assert _chat(tools=[TOOL], tool_choice=choice)["tool_choice"] == expected
    assert "parallel_tool_calls" not in _chat(tools=[TOOL], tool_choice=choice)
    single = _chat(tools=[TOOL], tool_choice=choice | {"disable_parallel_tool_use": True})
    assert single["parallel_tool_calls"] is False


@pytest.mark.parametrize(
    ("fields", "effort"),
    [
        ({"thinking": {"type": "disabled"}}, "none"),
        ({"thinking": {"type": "adaptive"}}, None),
        ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, "low"),
        ({"thinking": {"type": "enabled", "budget_tokens": 30_000}}, "high"),
        ({"thinking": {"type": "adaptive"}, "output_config": {"effort": "max"}}, "max"),
    ],
)
def test_thinking_is_an_effort(fields, effort):
    """A budget becomes a grade; an effort that is named wins."""
    assert _chat(**fields).get("reasoning_effort") == effort


def test_an_output_schema_is_a_response_format():
    """Structured outputs keep their schema."""
    schema = {"type": "object", "properties": {}}
    chat = _chat(output_config={"format": {"type": "json_schema", "schema": schema}})
    assert chat["response_format"]["json_schema"]["schema"] == schema


@pytest.mark.parametrize(
    ("fields", "place"),
    [
        ({"model": None}, "model"),
        ({"max_tokens": None}, "max_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"messages": []}, "messages"),
        ({"messages": [1]}, "messages.0"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages.0.role"),
        ({"messages": [{"role": "user"}]}, "messages.0.content"),
        ({"messages": [{"role": "user", "content": [{"type": "audio"}]}]}, "messages.0.content.0"),
        ({"messages": [{"role": "user", "content": [FILE_IMAGE]}]}, "messages.0.content.0.source.type"),
        ({"messages": [{"role": "user", "content": [{"type": "tool_result"}]}]}, "messages.0.content.0.tool_use_id"),
        ({"messages": [{"role": "assistant", "content": [{"type": "server_tool_use"}]}]}, "messages.0.content.0"),
        ({"system": [{"type": "image"}]}, "system.0"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools.0.type"),
        ({"tools": [{"name": "x"}]}, "tools.0.input_schema"),
        ({"tools": [TOOL], "tool_choice": {"type": "tool"}}, "tool_choice.name"),
        ({"thinking": {"type": "enabled"}}, "thinking.budget_tokens"),
        ({"stop_sequences": [1]}, "stop_sequences.0"),
        ({"mcp_servers": [{"url": "x"}]}, "mcp_servers"),
        ({"n": 2}, "n"),
        ({"stream": "yes"}, "stream"),
    ],
)
def test_mistakes_name_their_place(fields, place):
    """Every error says which field is at fault."""
    with pytest.raises(InvalidRequest) as caught:
        _chat(**fields)
    assert caught.value.param == place


@given(st.dictionaries(st.sampled_from(FIELDS), JSON))
def test_any_json_is_converted_or_refused(fields):
    """Nothing but InvalidRequest comes out of a body, whatever it is."""
    body = {"model": "m", "max_tokens": 1, "messages": [USER]} | fields
    try:
        read_messages_request(json.dumps(body).encode())
    except InvalidRequest:
        return


@given(
    st.text(max_size=20),
    st.text(max_size=20),
    st.lists(st.tuples(st.text(min_size=1, max_size=5), OBJECTS), max_size=3),
)
def test_an_answer_that_is_sent_back_is_what_was_said(text, thinking, calls):
    """The assistant's message is the same after the way to the client and back: its prompt repeats."""
    tool_calls = [
        {"id": f"c{i}", "type": "function", "function": {"name": name, "arguments": msgspec.json.encode(a).decode()}}
        for i, (name, a) in enumerate(calls)
    ]
    said = {"role": "assistant", "content": text or None, "reasoning": thinking or None, "tool_calls": tool_calls}
    body = {"model": "m", "choices": [{"message": said, "finish_reason": "stop"}]}
    content = message_of(msgspec.json.encode(body), "msg_1")["content"]
    back = _messages(USER, {"role": "assistant", "content": content}, USER)[1]
    assert (back["content"] or "") == text
    assert back.get("reasoning", "") == thinking
    assert back.get("tool_calls", []) == tool_calls
