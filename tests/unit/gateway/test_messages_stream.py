"""Chat answers and chat streams as messages and message streams."""

import json
from typing import Any

import pytest
from anthropic.types import Message
from hypothesis import given
from hypothesis import strategies as st

from core.errors import EngineError
from gateway.anthropic_api.answer import message_of
from gateway.anthropic_api.stream import MessageStream

PIECES = st.lists(
    st.tuples(st.sampled_from(["content", "reasoning"]), st.text(min_size=1, max_size=5))
    | st.tuples(st.integers(0, 2), st.sampled_from(['{"a":', " 1}", "", "x"])),
    max_size=12,
)


def _chunk(delta: dict[str, Any], **choice: Any) -> dict[str, Any]:
    return {"model": "coder@1", "choices": [{"index": 0, "delta": delta, **choice}]}


def _events(*chunks: dict[str, Any]) -> list[dict[str, Any]]:
    stream = MessageStream("msg_1")
    sent = b"".join(b"".join(stream.feed(json.dumps(chunk).encode())) for chunk in chunks)
    sent += b"".join(stream.end())
    events = []
    for frame in sent.decode().split("\n\n")[:-1]:
        name, data = frame.split("\n")
        events.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {events[-1]['type']}"
    return events


def _assemble(events: list[dict[str, Any]]) -> dict[str, Any]:
    """The message as the official client puts it together, after a check of the events' order."""
    assert events[0]["type"] == "message_start"
    assert [event["type"] for event in events[-2:]] == ["message_delta", "message_stop"]
    message: dict[str, Any] = dict(events[0]["message"])
    content: list[dict[str, Any]] = []
    inside = False
    for event in events[1:-2]:
        kind = event["type"]
        if kind == "content_block_start":
            assert not inside and event["index"] == len(content)
            inside = True
            content.append(dict(event["content_block"]) | {"json": ""})
        elif kind == "content_block_delta":
            assert inside and event["index"] == len(content) - 1
            delta = dict(event["delta"])
            kind, block = delta.pop("type"), content[-1]
            field = {"text_delta": "text", "thinking_delta": "thinking", "input_json_delta": "json"}.get(kind)
            if field is None:
                block["signature"] = delta["signature"]
            else:
                block[field] += next(iter(delta.values()))
        elif kind == "content_block_stop":
            assert inside and event["index"] == len(content) - 1
            inside = False
        else:
            assert kind == "ping"
    assert not inside
    return message | events[-2]["delta"] | {"content": content, "usage": events[-2]["usage"]}


def test_the_order_of_events_is_anthropics():
    """Start, block, ping, deltas, end of the block, the reason, the end."""
    usage = {"prompt_tokens": 7, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 4}}
    events = _events(
        _chunk({"role": "assistant", "content": ""}) | {"usage": {"prompt_tokens": 7, "completion_tokens": 0}},
        _chunk({"content": "a"}),
        _chunk({"content": "b"}),
        _chunk({}, finish_reason="stop", stop_reason=None),
        {"model": "coder@1", "choices": [], "usage": usage},
    )
    assert [event["type"] for event in events] == [
        "message_start",
        "content_block_start",
        "ping",
        "content_block_delta",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    assert events[0]["message"]["usage"]["input_tokens"] == 7
    assert events[0]["message"]["model"] == "coder@1"
    assert events[-2]["delta"] == {"stop_reason": "end_turn", "stop_sequence": None}
    assert events[-2]["usage"] == {
        "input_tokens": 3,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 4,
        "output_tokens": 2,
    }


def test_thinking_text_and_calls_are_blocks_one_after_the_other():
    """Thinking ends with its signature; text inside a call waits for the call's end; a second call follows."""
    call = {"index": 0, "id": "c0", "function": {"name": "look", "arguments": ""}}
    events = _events(
        _chunk({"reasoning": "hm"}),
        _chunk({"content": "I look."}),
        _chunk({"tool_calls": [call]}),
        _chunk({"tool_calls": [{"index": 0, "function": {"arguments": '{"a":'}}]}),
        _chunk({"content": " And"}),
        _chunk({"tool_calls": [{"index": 0, "function": {"arguments": "1}"}}]}),
        _chunk({"tool_calls": [call | {"index": 1, "id": "c1"}]}),
        _chunk({}, finish_reason="tool_calls"),
    )
    message = _assemble(events)
    assert [block["type"] for block in message["content"]] == ["thinking", "text", "tool_use", "text", "tool_use"]
    assert message["content"][0]["thinking"] == "hm" and message["content"][0]["signature"]
    assert message["content"][2] == {"type": "tool_use", "id": "c0", "name": "look", "input": {}, "json": '{"a":1}'}
    assert message["content"][3]["text"] == " And"
    assert message["stop_reason"] == "tool_use"


def test_an_empty_answer_has_one_empty_block():
    """Clients look at the first block without asking whether there is one."""
    assert _assemble(_events(_chunk({}, finish_reason="stop")))["content"][0]["text"] == ""
    assert _assemble(_events())["stop_reason"] == "end_turn"


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        ({"finish_reason": "stop"}, ("end_turn", None)),
        ({"finish_reason": "stop", "stop_reason": 128009}, ("end_turn", None)),
        ({"finish_reason": "stop", "stop_reason": "END"}, ("stop_sequence", "END")),
        ({"finish_reason": "length"}, ("max_tokens", None)),
        ({"finish_reason": "content_filter"}, ("refusal", None)),
        ({"finish_reason": "tool_calls"}, ("tool_use", None)),
    ],
)
def test_stop_reasons(choice, expected):
    """Each reason of the engine's has one of Anthropic's, in an answer and in a stream."""
    streamed = _assemble(_events(_chunk({"content": "a"}, **choice)))
    assert (streamed["stop_reason"], streamed["stop_sequence"]) == expected
    body = {"model": "m", "choices": [choice | {"message": {"content": "a"}}]}
    whole = message_of(json.dumps(body).encode(), "msg_1")
    assert (whole["stop_reason"], whole["stop_sequence"]) == expected


@pytest.mark.parametrize(
    ("arguments", "stop", "reason", "given"),
    [
        ('{"a":1}', "END", "tool_use", {"a": 1}),
        ('{"a":', "END", "stop_sequence", {"INVALID_JSON": '{"a":'}),
        ("", None, "tool_use", {}),
        ("[1]", None, "tool_use", {"INVALID_JSON": "[1]"}),
    ],
)
def test_a_call_that_was_cut_short_is_not_run(arguments, stop, reason, given):
    """A stop string wins over an unfinished call, and its input says that it is no JSON object."""
    call = {"id": "c", "function": {"name": "look", "arguments": arguments}}
    choice = {"finish_reason": "stop", "stop_reason": stop}
    body = {"model": "m", "choices": [choice | {"message": {"content": None, "tool_calls": [call]}}]}
    whole = message_of(json.dumps(body).encode(), "msg_1")
    assert (whole["stop_reason"], whole["content"][0]["input"]) == (reason, given)
    assert Message.model_validate(whole).content[0].type == "tool_use"
    streamed = _assemble(_events(_chunk({"tool_calls": [call | {"index": 0}]}, **choice)))
    assert streamed["stop_reason"] == reason


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b'{"choices": []}', b"\xff", b'{"choices": [1]}'])
def test_an_unreadable_answer_is_the_engines_fault(body):
    """Nothing is made up from an answer that is none."""
    with pytest.raises(EngineError):
        message_of(body, "msg_1")


@given(PIECES)
def test_a_stream_says_what_its_chunks_say(pieces):
    """Whatever comes in whatever order: blocks never overlap, and no character is lost, doubled or out of order."""
    chunks, said = [], {"content": "", "reasoning": ""}
    calls: dict[int, str] = {}
    for kind, text in pieces:
        if isinstance(kind, int):
            if text and json_object(calls.get(kind, "")):
                continue
            function = {"arguments": text} | ({} if kind in calls else {"name": f"tool{kind}"})
            chunks.append(_chunk({"tool_calls": [{"index": kind, "id": f"c{kind}", "function": function}]}))
            calls[kind] = calls.get(kind, "") + text
        else:
            chunks.append(_chunk({kind: text}))
            said[kind] += text
    content = _assemble(_events(*chunks))["content"]
    assert "".join(block["text"] for block in content if block["type"] == "text") == said["content"]
    assert "".join(block["thinking"] for block in content if block["type"] == "thinking") == said["reasoning"]
    assert {block["id"]: block["json"] for block in content if block["type"] == "tool_use"} == {
        f"c{number}": text for number, text in calls.items()
    }


def json_object(text: str) -> bool:
    """Whether the arguments are whole; a provider sends no more of them then."""
    try:
        return isinstance(json.loads(text), dict)
    except ValueError:
        return False
