"""Bad events of a request, read off its Turns: what guardrails count. Pure.

Refusals are recognised by how models say them in English, and by the field that the OpenAI API has for them; both
arms are measured with the same ruler, so that what it misses is missed on both sides.
"""

import json
import math
import re
from collections.abc import Iterable, Mapping

from core.guardrails import NAN_LOGPROBS, Guardrails
from core.message import Message
from core.turn import Turn

_REFUSAL = re.compile(
    r"^\W*(?:i['\u2019]?m sorry,? but i (?:can|am not|won)|i(?: am|['\u2019]m) (?:not able|unable) to\b|"
    r"i (?:can(?:not|['\u2019]t)|won['\u2019]t) (?:help|assist|do|provide|answer|comply|create|write|discuss)|"
    r"sorry,? (?:but )?i can(?:not|['\u2019]t)|as an ai(?: language)? model,? i (?:can|am))",
    re.IGNORECASE,
)
_CUT_OFF = "length"
_ENGINE_FAILED = "engine_failed"
_LEAST_DRAFTED = 8
"""Fewer draft tokens say nothing about acceptance."""


def request_events(turns: Iterable[Turn], guardrails: Guardrails) -> set[str]:
    """The events of one request, whose answers are ``turns``."""
    return {event for turn in turns for event in _events(turn, guardrails)}


def _events(turn: Turn, guardrails: Guardrails) -> Iterable[str]:
    timing, counts = turn.timing, turn.speculation
    first = timing.total_seconds if timing.first_token_seconds is None else timing.first_token_seconds
    if turn.finish_reason == _ENGINE_FAILED:
        yield "error"
    if first > guardrails.slow_seconds:
        yield "slow"
    if turn.finish_reason == _CUT_OFF or turn.usage.completion_tokens > guardrails.long_tokens:
        yield "long"
    if counts.drafted >= _LEAST_DRAFTED and counts.accepted < guardrails.least_acceptance * counts.drafted:
        yield "low_acceptance"
    if any(not math.isfinite(value) for value in turn.output_logprobs):
        yield NAN_LOGPROBS
    if turn.finish_reason == "content_filter":
        yield "refusal"
    yield from message_events(turn.response, turn.sampling.get("tools"))


def message_events(message: Message, tools: object) -> Iterable[str]:
    """What an answer's message says by itself; ``tools``: those that the request offered, as it sent them."""
    if refuses(message):
        yield "refusal"
    if not _valid_calls(message, tools):
        yield "invalid_tool_call"


def refuses(message: Message) -> bool:
    """Whether an answer declines to answer."""
    if message.get("refusal"):
        return True
    content = message.get("content")
    return isinstance(content, str) and _REFUSAL.match(content) is not None


def _valid_calls(message: Message, tools: object) -> bool:
    calls = message.get("tool_calls") or ()
    if not isinstance(calls, list | tuple):
        return False
    offered = _offered(tools)
    return all(_valid_call(call, offered) for call in calls)


def _valid_call(call: object, offered: frozenset[str] | None) -> bool:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        return False
    if offered is not None and function["name"] not in offered:
        return False
    try:
        arguments = json.loads(function.get("arguments") or "{}")
    except (TypeError, ValueError, RecursionError):
        return False
    return isinstance(arguments, dict)


def _offered(tools: object) -> frozenset[str] | None:
    """Names of the tools of a request; None where they cannot be told."""
    if not isinstance(tools, list):
        return None
    functions = [tool.get("function") for tool in tools if isinstance(tool, Mapping)]
    return frozenset(
        one["name"] for one in functions if isinstance(one, Mapping) and isinstance(one.get("name"), str)
    )
