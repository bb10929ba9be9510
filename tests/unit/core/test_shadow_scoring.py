"""Scores of mirrored requests by rules alone."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.guardrails import Guardrails
from core.policy import PolicySpan
from core.shadow_scoring import EXACT, JSON_FORMAT, JSON_SCHEMA, TOOL_CALLS, ShadowScore, answer_events, score_pair
from core.turn import Timing, Turn
from core.variant import Variant

PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"$ref": "#/$defs/age"}},
    "required": ["name"],
    "$defs": {"age": {"type": "integer", "minimum": 0}},
}
TOOLS = [{"type": "function", "function": {"name": "add", "parameters": PERSON}}]


def turn(content: str | None = None, *, calls: tuple[tuple[str, str], ...] = (), **sampling: Any) -> Turn:
    """An answer to a request with these fields."""
    message: dict[str, Any] = {"role": "assistant", "content": content}
    if calls:
        message["tool_calls"] = [
            {"id": "c", "type": "function", "function": {"name": name, "arguments": text}} for name, text in calls
        ]
    return Turn(
        id="turn_a",
        episode_id="ep_a",
        index=0,
        tenant_id="ten_a",
        policy="coder",
        policy_spans=(PolicySpan(version=1, first_token=0),),
        variant=Variant.STANDARD,
        deployment_id="dep_a",
        response=message,
        sampling=sampling,
        prompt_ids=(),
        output_ids=(),
        output_logprobs=(),
        finish_reason="stop",
        timing=Timing(started_at=0.0, total_seconds=0.1),
        request_id="req_a",
    )


def schema(of: Any) -> dict[str, Any]:
    """A request's field that asks for JSON of a schema."""
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": of}}}


@pytest.mark.parametrize(
    ("sampling", "good", "bad", "rule"),
    [
        ({"metadata": {"hone_expected": "Paris "}}, "paris", "Rome", EXACT),
        (schema(PERSON), '{"name": "a", "age": 3}', '{"name": "a", "age": -3}', JSON_SCHEMA),
        (schema(PERSON), '{"name": "a"}', "no JSON", JSON_SCHEMA),
        ({"response_format": {"type": "json_object"}}, '{"a": 1}', "[1]", JSON_FORMAT),
    ],
)
def test_a_rule_tells_a_good_answer_from_a_bad_one(sampling, good, bad, rule):
    """Either side may be the better one; equal answers have equal scores."""
    first, second = turn(good, **sampling), turn(bad, **sampling)
    assert score_pair(first, second) == ShadowScore(1.0, 0.0, rule)
    assert score_pair(second, first) == ShadowScore(0.0, 1.0, rule)
    assert score_pair(first, first) == ShadowScore(1.0, 1.0, rule)


@pytest.mark.parametrize(
    ("calls", "choice", "worth"),
    [
        ((("add", '{"name": "a"}'),), "auto", 1.0),
        ((("add", '{"name": 1}'),), "auto", 0.0),
        ((("add", "{"),), "auto", 0.0),
        ((("other", "{}"),), "auto", 0.0),
        ((("add", '{"name": "a"}'), ("other", "{}")), "auto", 0.0),
        ((), "auto", 1.0),
        ((), "required", 0.0),
    ],
)
def test_tool_calls_are_judged_by_their_validity(calls, choice, worth):
    """Name and arguments must fit; words instead of a call are as good unless a call was demanded."""
    fields = {"tools": TOOLS, "tool_choice": choice}
    good = turn(None, calls=(("add", '{"name": "a"}'),), **fields)
    assert score_pair(good, turn("words", calls=calls, **fields)) == ShadowScore(1.0, worth, TOOL_CALLS)


def test_words_alone_are_not_judged():
    """Without a rule there is no score: two answers that are there are not therefore equally good."""
    assert score_pair(turn("a"), turn("")) is None
    assert score_pair(turn("a", tools=TOOLS), turn("b", tools=TOOLS)) is None


@pytest.mark.parametrize(
    "of",
    [
        {"type": "nonsense"},
        {"$ref": "#"},
        {"$ref": "http://127.0.0.1:1/schema.json"},
        {"$id": "http://127.0.0.1:1/schema.json", "$ref": "#/a"},
        {"$ref": "#/nowhere"},
        {"multipleOf": 0},
        {"patternProperties": {"(a+)+$": {}}},
        {"description": "x" * 30_000},
        {"$ref": "#/$defs/l0", "$defs": {f"l{i}": {"allOf": [{"$ref": f"#/$defs/l{i + 1}"}] * 2} for i in range(40)}
         | {"l40": {}}},
    ],
)  # fmt: skip
def test_a_schema_that_cannot_be_judged_by_ends_quickly(of):
    """Wrong, endless, remote, huge or explosive schemas give no score and no error."""
    assert score_pair(turn("{}", **schema(of)), turn("{}", **schema(of))) is None


def test_a_schemas_regular_expressions_are_left_out():
    """One that would take for ever is never matched."""
    of = {"type": "string", "pattern": "^(a+)+$"}
    answer = json.dumps("a" * 60 + "!")
    assert score_pair(turn(answer, **schema(of)), turn("1", **schema(of))) == ShadowScore(1.0, 0.0, JSON_SCHEMA)


def test_events_are_those_of_guardrails_and_emptiness():
    """In order of their names, without doubles."""
    refusing = turn("I'm sorry, but I can't help with that.").model_copy(update={"finish_reason": "length"})
    assert answer_events(refusing, Guardrails()) == ("long", "refusal")
    assert answer_events(turn("  "), Guardrails()) == ("empty",)
    assert answer_events(turn(None, calls=(("add", "{}"),), tools=TOOLS), Guardrails()) == ()


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@given(
    st.fixed_dictionaries(
        {}, optional={"tools": JSON, "tool_choice": JSON, "response_format": JSON, "metadata": JSON}
    ),
    JSON,
    JSON,
    JSON,
)
def test_scores_are_bounded_whatever_anybody_sent(sampling, content, calls, of):
    """Any JSON in any place gives scores in [0, 1] or none, the same for both sides of equal answers."""
    for fields in (sampling, sampling | schema(of)):
        answer = turn(**fields).model_copy(update={"response": {"content": content, "tool_calls": calls}})
        other = turn("x", **fields)
        for score in (score_pair(answer, other), score_pair(answer, answer)):
            assert score is None or (0.0 <= score.primary <= 1.0 and 0.0 <= score.candidate <= 1.0)
        same = score_pair(answer, answer)
        assert same is None or same.primary == same.candidate
