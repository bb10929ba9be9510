"""What a Turn says of itself for guardrails: slow, long, refused, bad tool calls, poor acceptance, broken numbers."""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.guardrails import EVENTS, REWARD, Guardrails, event_of
from core.policy import PolicySpan
from core.turn import SpeculationCounts, Timing, Turn
from core.turn_events import refuses, request_events
from core.variant import Variant

TOOLS = [{"type": "function", "function": {"name": "add"}}]


def turn(**fields: Any) -> Turn:
    """An answered Turn without any event."""
    values: dict[str, Any] = {
        "id": "turn_1",
        "episode_id": "ep_1",
        "index": 0,
        "tenant_id": "ten_1",
        "policy": "coder",
        "policy_spans": (PolicySpan(version=1),),
        "variant": Variant.STANDARD,
        "deployment_id": "dep_1",
        "prompt_ids": (1,),
        "output_ids": (2,),
        "output_logprobs": (-0.1,),
        "timing": Timing(started_at=0.0, total_seconds=1.0),
        "response": {"role": "assistant", "content": "four"},
        "finish_reason": "stop",
        "request_id": "req_1",
    }
    return Turn(**(values | fields))


def call(name: str, arguments: str) -> dict[str, Any]:
    """An answer that calls one tool."""
    return {"role": "assistant", "tool_calls": [{"id": "c", "function": {"name": name, "arguments": arguments}}]}


@pytest.mark.parametrize(
    ("fields", "events"),
    [
        ({}, set()),
        ({"finish_reason": "engine_failed"}, {"error"}),
        ({"finish_reason": "length"}, {"long"}),
        ({"timing": Timing(started_at=0.0, total_seconds=11.0)}, {"slow"}),
        ({"timing": Timing(started_at=0.0, first_token_seconds=0.1, total_seconds=99.0)}, set()),
        ({"speculation": SpeculationCounts(drafted=20, accepted=1)}, {"low_acceptance"}),
        ({"speculation": SpeculationCounts(drafted=4, accepted=0)}, set()),
        ({"output_logprobs": (math.nan,)}, {"nan_logprobs"}),
        ({"response": call("add", '{"a": 1}'), "sampling": {"tools": TOOLS}}, set()),
        ({"response": call("rm", "{}"), "sampling": {"tools": TOOLS}}, {"invalid_tool_call"}),
        ({"response": call("add", "[1]")}, {"invalid_tool_call"}),
        ({"response": call("add", "{")}, {"invalid_tool_call"}),
        ({"response": {"tool_calls": [{}]}}, {"invalid_tool_call"}),
        ({"response": {"refusal": "no"}}, {"refusal"}),
        ({"response": {"content": "I'm sorry, but I can't help with that."}}, {"refusal"}),
    ],
)
def test_each_event_is_seen(fields: dict[str, Any], events: set[str]) -> None:
    """Exactly the event that the Turn shows."""
    assert request_events([turn(**fields)], Guardrails()) == events


def test_a_request_has_the_events_of_all_its_answers() -> None:
    """Several choices are one request."""
    both = [turn(finish_reason="length"), turn(response={"refusal": "no"})]
    assert request_events(both, Guardrails()) == {"long", "refusal"}


def test_an_answer_about_refusing_is_no_refusal() -> None:
    """What only speaks of it, or comes later in the text, does not count."""
    assert not refuses({"content": "She said: I cannot help with that."})
    assert not refuses({"content": "I can help with that."})
    assert not refuses({"content": None})


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from(["content", "tool_calls", "refusal"]), json_values), json_values)
def test_no_answer_breaks_it(response: dict[str, Any], tools: Any) -> None:
    """Whatever JSON an engine or a client sent, the events are known ones."""
    seen = request_events([turn(response=response, sampling={"tools": tools})], Guardrails())
    assert seen <= EVENTS.keys()


def test_every_default_guardrail_watches_a_known_event() -> None:
    """A name that nothing ever counts would watch nothing."""
    assert {event_of(name) for name in Guardrails().margins} - {REWARD} <= EVENTS.keys()
