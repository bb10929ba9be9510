"""Scores of a mirrored request: what can be told of two answers by rules alone, without a judge. Pure.

The first rule that applies scores both answers by the same measure; where none applies, nothing is said. That an
answer is there, complete and no refusal is no score: it is among the events, so that nothing which merely answers
counts as equally good. Schemas are the client's: they are bounded in size and steps, and a schema's regular
expressions are left out, because matching one can take for ever.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.validators import extend

from core.guardrails import Guardrails
from core.message import Message
from core.turn import Turn
from core.turn_events import request_events

EMPTY = "empty"
"""Event of an answer that says nothing and calls nothing."""
EXPECTED_METADATA = "hone_expected"
"""Key in a request's ``metadata`` with the one right answer, for traffic that has one."""
EXACT, JSON_FORMAT, JSON_SCHEMA, TOOL_CALLS = "exact/1", "json_format/1", "json_schema/1", "tool_calls/1"
_MOST_SCHEMA = 20_000
_MOST_STEPS = 20_000
"""Keywords that are looked at for one answer: a schema that refers to itself can ask for any number."""


@dataclass(frozen=True, slots=True)
class ShadowScore:
    """Scores in [0, 1], and the rule that gave them."""

    primary: float
    candidate: float
    judged_by: str


class _Unjudgeable(Exception):
    """A schema that nothing can be judged by."""


def score_pair(primary: Turn, candidate: Turn) -> ShadowScore | None:
    """Scores of two answers to one request; None: no rule applies."""
    for name, rule in (
        (EXACT, _exact),
        (TOOL_CALLS, _tool_calls),
        (JSON_SCHEMA, _json_schema),
        (JSON_FORMAT, _json_format),
    ):
        try:
            score = rule(primary.sampling, (primary.response, candidate.response))
            if score is not None:
                return ShadowScore(score(primary.response), score(candidate.response), name)
        except _Unjudgeable:
            return None
    return None


def answer_events(turn: Turn, guardrails: Guardrails) -> tuple[str, ...]:
    """Bad events of an answer by name, in order; see ``core.guardrails``, and ``empty``."""
    found = request_events([turn], guardrails)
    if not _text(turn.response).strip() and not turn.response.get("tool_calls"):
        found.add(EMPTY)
    return tuple(sorted(found))


_Score = Callable[[Message], float]
_Sampling = Mapping[str, Any]
_Answers = tuple[Message, Message]


def _exact(sampling: _Sampling, answers: _Answers) -> _Score | None:
    metadata = sampling.get("metadata")
    expected = metadata.get(EXPECTED_METADATA) if isinstance(metadata, Mapping) else None
    if not isinstance(expected, str) or not expected.strip():
        return None
    wanted = _plain(expected)
    return lambda message: float(_plain(_text(message)) == wanted)


def _tool_calls(sampling: _Sampling, answers: _Answers) -> _Score | None:
    """Where a call is demanded, or one side makes one: whether its calls are valid. Words alone are valid too,
    unless a call is demanded."""
    offered = _offered(sampling.get("tools"))
    choice = sampling.get("tool_choice")
    demanded = choice == "required" or isinstance(choice, Mapping)
    if not offered or not (demanded or any(answer.get("tool_calls") for answer in answers)):
        return None

    def score(message: Message) -> float:
        calls = message.get("tool_calls")
        if not calls:
            return float(not demanded and bool(_text(message).strip()))
        return float(isinstance(calls, list | tuple) and all(_valid_call(call, offered) for call in calls))

    return score


def _json_schema(sampling: _Sampling, answers: _Answers) -> _Score | None:
    wanted = sampling.get("response_format")
    if not isinstance(wanted, Mapping) or wanted.get("type") != "json_schema":
        return None
    named = wanted.get("json_schema")
    schema = named.get("schema") if isinstance(named, Mapping) else None
    if not isinstance(schema, Mapping):
        return None

    def score(message: Message) -> float:
        try:
            given = json.loads(_text(message))
        except (ValueError, RecursionError):
            return 0.0
        return float(_fits(given, schema))

    return score


def _json_format(sampling: _Sampling, answers: _Answers) -> _Score | None:
    wanted = sampling.get("response_format")
    if not isinstance(wanted, Mapping) or wanted.get("type") != "json_object":
        return None

    def score(message: Message) -> float:
        try:
            return float(isinstance(json.loads(_text(message)), dict))
        except (ValueError, RecursionError):
            return 0.0

    return score


def _valid_call(call: object, offered: Mapping[str, object]) -> bool:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        return False
    if function["name"] not in offered:
        return False
    try:
        arguments = json.loads(function.get("arguments") or "{}")
    except (TypeError, ValueError, RecursionError):
        return False
    schema = offered[function["name"]]
    return isinstance(arguments, dict) and (not isinstance(schema, Mapping) or _fits(arguments, schema))


def _offered(tools: object) -> dict[str, object]:
    """Name of a tool → schema of its arguments."""
    if not isinstance(tools, list):
        return {}
    functions = [tool.get("function") for tool in tools if isinstance(tool, Mapping)]
    return {
        one["name"]: one.get("parameters")
        for one in functions
        if isinstance(one, Mapping) and isinstance(one.get("name"), str)
    }


def _fits(given: object, schema: Mapping[str, Any]) -> bool:
    """Whether a value fits a client's schema; raises _Unjudgeable."""
    try:
        if len(json.dumps(schema)) > _MOST_SCHEMA or any(_is_barred(key, value) for key, value in _items(schema)):
            raise _Unjudgeable
        Draft202012Validator.check_schema(schema)
        return bool(_bounded()(schema).is_valid(given))
    except Exception as error:
        # The library was not made for schemas of strangers: what it raises then is its own affair.
        raise _Unjudgeable from error


def _bounded() -> Any:
    """A validator for one answer, which gives up after so many steps."""
    left = _MOST_STEPS

    def counted(keyword: Any) -> Any:
        def look(*arguments: Any) -> Any:
            nonlocal left
            left -= 1
            if left < 0:
                raise _Unjudgeable
            return keyword(*arguments)

        return look

    keywords = {name: counted(check) for name, check in Draft202012Validator.VALIDATORS.items()}
    return extend(Draft202012Validator, keywords | {"pattern": lambda *_arguments: ()})


def _is_barred(key: str, value: object) -> bool:
    """Whether a keyword matches regular expressions all the same, or could have something fetched."""
    if key in ("$ref", "$dynamicRef"):
        return not isinstance(value, str) or not value.startswith("#")
    return key in ("patternProperties", "$id")


def _items(schema: object) -> Iterator[tuple[str, object]]:
    if isinstance(schema, Mapping):
        yield from schema.items()
        for value in schema.values():
            yield from _items(value)
    elif isinstance(schema, list):
        for value in schema:
            yield from _items(value)


def _plain(text: str) -> str:
    return " ".join(text.split()).casefold()


def _text(message: Message) -> str:
    content = message.get("content")
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return ""
    return "".join(part["text"] for part in content if isinstance(part, dict) and isinstance(part.get("text"), str))
