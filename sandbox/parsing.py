"""Reads tool calls out of an assistant message, wherever they stand.

Two sources: OpenAI's ``tool_calls`` when the engine parsed them, else a JSON object
``{"name": …, "arguments": {…}}`` in the text, bare, in a ```json fence or in <tool_call> tags. Reading is
tolerant; whether the text was strictly one call and nothing else is reported apart. Pure functions; nothing
here raises on what a policy wrote.
"""

import json
import re
from typing import Any, Literal

from core.message import Message
from core.noun import Noun

MAX_TEXT = 200_000
"""Characters of an answer that are looked at."""
_MAX_STARTS = 64
"""Opening braces that are tried as the start of a JSON object: bounds the work on hostile text."""
_TAGS = re.compile(r"<tool_call>(.*?)(?:</tool_call>|\Z)", re.DOTALL)
_FENCES = re.compile(r"```(?:json|tool_call)?[ \t]*\n(.*?)(?:```|\Z)", re.DOTALL)


class ToolCall(Noun):
    """One call that a policy asked for; ``error`` says why it cannot be run as asked."""

    id: str | None = None
    """The engine's id, to which a tool message must refer; None for a call found in text."""
    name: str
    arguments: dict[str, Any]
    error: str | None = None


class ParsedAnswer(Noun):
    """What an assistant message asked for."""

    calls: tuple[ToolCall, ...] = ()
    source: Literal["tool_calls", "text", "none"] = "none"
    is_json: bool = False
    """A JSON object was found (always true for ``tool_calls`` with readable arguments)."""
    strict: bool = False
    """The message is exactly one well-formed call with ``name`` and ``arguments``, and nothing around it."""


def message_text(message: Message) -> str:
    """The text of a message; content given as OpenAI's list of parts is joined."""
    content = message.get("content")
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    return ""


def parse_answer(message: Message) -> ParsedAnswer:
    """The tool calls of an assistant message; none when it is an ordinary answer."""
    native = message.get("tool_calls")
    if isinstance(native, list) and native:
        calls = tuple(_native_call(item) for item in native)
        readable = all(call.error is None for call in calls)
        return ParsedAnswer(calls=calls, source="tool_calls", is_json=readable, strict=readable and len(calls) == 1)
    return _parse_text(message_text(message)[:MAX_TEXT])


def find_json_object(text: str) -> tuple[dict[str, Any] | None, bool]:
    """The first JSON object in ``text``, and whether it is all of the text but for white space."""
    stripped = text.strip()
    whole = load_json(stripped)
    if isinstance(whole, dict):
        return whole, True
    for pattern in (_TAGS, _FENCES):
        for match in pattern.finditer(stripped):
            inner = load_json(match[1].strip())
            if isinstance(inner, dict):
                return inner, False
    return _first_object(stripped), False


def load_json(text: str) -> Any:
    """The value of a JSON text, or None when it is not JSON, too deep, or not encodable as UTF-8."""
    try:
        value = json.loads(text, parse_constant=_refuse_constant)
        # Escapes such as \ud800 make lone surrogates, which no file, pipe or database would take.
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    except (ValueError, RecursionError):
        return None
    return value


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _first_object(text: str) -> dict[str, Any] | None:
    decoder = json.JSONDecoder(parse_constant=_refuse_constant)
    start = text.find("{")
    for _ in range(_MAX_STARTS):
        if start < 0:
            return None
        try:
            _, end = decoder.raw_decode(text, start)
        except (ValueError, RecursionError):
            start = text.find("{", start + 1)
            continue
        value = load_json(text[start:end])
        return value if isinstance(value, dict) else None
    return None


def _parse_text(text: str) -> ParsedAnswer:
    found, alone = find_json_object(text)
    if found is None:
        return ParsedAnswer()
    name = found.get("name")
    if not isinstance(name, str):
        return ParsedAnswer(is_json=True)
    arguments = found.get("arguments")
    if not isinstance(arguments, dict):
        call = ToolCall(name=name, arguments={}, error="'arguments' is not a JSON object")
        return ParsedAnswer(calls=(call,), source="text", is_json=True)
    call = ToolCall(name=name, arguments=arguments)
    strict = alone and set(found) == {"name", "arguments"}
    return ParsedAnswer(calls=(call,), source="text", is_json=True, strict=strict)


def _native_call(item: Any) -> ToolCall:
    item = item if isinstance(item, dict) else {}
    function = item.get("function")
    function = function if isinstance(function, dict) else {}
    identity = item.get("id")
    raw = function.get("arguments")
    arguments = load_json(raw) if isinstance(raw, str) else raw
    readable = isinstance(arguments, dict)
    return ToolCall(
        id=identity if isinstance(identity, str) else None,
        name=str(function.get("name") or ""),
        arguments=arguments if isinstance(arguments, dict) else {},
        error=None if readable else "the arguments are not a JSON object",
    )
