"""Reading tool calls out of assistant messages."""

import json

from hypothesis import given
from hypothesis import strategies as st

from sandbox.parsing import find_json_object, load_json, message_text, parse_answer

JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**9), 10**9) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
ARGUMENTS = st.dictionaries(st.text(max_size=6), JSON_VALUES, max_size=3)


def say(text):
    """An assistant message with this text."""
    return {"role": "assistant", "content": text}


@given(st.text(max_size=300))
def test_any_text_is_read_without_an_exception(text):
    """Whatever a policy writes, reading it gives an answer and never raises."""
    parse_answer(say(text))
    parse_answer({"role": "assistant", "content": None, "tool_calls": [text, {"function": text}]})


@given(st.text(min_size=1, max_size=10), ARGUMENTS)
def test_a_bare_call_is_read_back_strictly(name, arguments):
    """A call written as bare JSON comes back as it was, and counts as strict."""
    parsed = parse_answer(say(json.dumps({"name": name, "arguments": arguments})))
    assert [(call.name, call.arguments) for call in parsed.calls] == [(name, arguments)]
    assert parsed.strict and parsed.is_json and parsed.source == "text"


@given(
    ARGUMENTS,
    st.sampled_from(
        [
            "```json\n{}\n```",
            "```\n{}\n```",
            "<tool_call>{}</tool_call>",
            "<tool_call>\n{}",
            "Sure! {} is the call.",
            "{} done",
        ]
    ),
)
def test_a_wrapped_call_is_read_but_is_not_strict(arguments, wrapping):
    """Fences, tags and words around a call are tolerated and reported as not strict."""
    text = wrapping.replace("{}", json.dumps({"name": "python", "arguments": arguments}))
    parsed = parse_answer(say(text))
    assert parsed.calls[0].arguments == arguments
    assert not parsed.strict


def test_native_tool_calls_win_and_keep_their_ids():
    """Calls that the engine parsed are taken with their ids, malformed arguments are reported."""
    message = {
        "role": "assistant",
        "content": '{"name":"x","arguments":{}}',
        "tool_calls": [
            {"id": "a", "type": "function", "function": {"name": "python", "arguments": '{"code":"1"}'}},
            {"id": "b", "type": "function", "function": {"name": "python", "arguments": "{oops"}},
        ],
    }
    parsed = parse_answer(message)
    assert parsed.source == "tool_calls"
    assert parsed.calls[0].id == "a" and parsed.calls[0].arguments == {"code": "1"}
    assert parsed.calls[1].error is not None
    assert not parsed.strict


def test_json_without_a_name_is_an_answer():
    """A JSON object that names no tool is an answer in JSON, not a call."""
    parsed = parse_answer(say('{"answer": 3}'))
    assert parsed.calls == () and parsed.is_json


def test_arguments_that_are_no_object_make_a_malformed_call():
    """A call whose arguments are text is a call that cannot run."""
    parsed = parse_answer(say('{"name":"python","arguments":"print(1)"}'))
    assert parsed.calls[0].error is not None and not parsed.strict


def test_hostile_json_is_not_json():
    """Depth bombs, NaN, huge numbers and lone surrogates are refused rather than passed on."""
    for text in ("[" * 100_000, '{"a": NaN}', "9" * 10_000, '"\\ud800"', '{"a":' * 50_000):
        assert load_json(text) is None
        assert find_json_object(text)[0] is None


def test_many_braces_do_not_cost_quadratic_time():
    """A text of braces is given up after a bounded number of starts."""
    assert find_json_object("{" * 200_000) == (None, False)


def test_content_parts_are_joined():
    """Content in OpenAI's form of parts is read as one text."""
    assert message_text({"content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}) == "ab"
