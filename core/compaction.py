"""Compaction: older tool results leave a conversation that has grown beyond its context budget. Pure, no I/O.

Each result that goes leaves one line that says so and how long it was. What remains is stable: the same results stay
out at the next Turn, so that it continues the compacted one token for token, and the next break comes only when the
budget is reached again.
"""

import json
from collections.abc import Callable, Sequence

from core.config.gateway import ContextBudget
from core.message import Message
from core.token_bound import counted_bytes

_BYTES_PER_TOKEN = 4
"""Of English text and code, roughly: only for what has not been counted yet."""
_STUB = "[tool result left out to save context: {length} characters]"
_STUB_HEAD = _STUB.partition("{")[0]
_MOST_STUB = 80
"""Characters of the line that is left."""

IsResult = Callable[[Message], bool]


def is_tool_result(message: Message) -> bool:
    """Whether a message is what a tool returned."""
    return message.get("role") == "tool"


def over_budget(messages: Sequence[Message], budget: ContextBudget, *, counted: int = 0, since: int = 0) -> bool:
    """Whether the next prompt would be longer than the budget.

    ``counted`` tokens are those of the first ``since`` messages, as the engine counted them; the rest is estimated.
    """
    new = sum(_size(message) for message in messages[since:])
    return counted + new // _BYTES_PER_TOKEN > budget.tokens


def compacted(
    messages: Sequence[Message], budget: ContextBudget, *, is_result: IsResult = is_tool_result, prefix: str = ""
) -> list[Message] | None:
    """The conversation without its older tool results; None where there is nothing to take out.

    ``prefix`` stands before the line that is left, as before every result of this kind.
    """
    results = [place for place, message in enumerate(messages) if is_result(message)]
    older = results[: len(results) - budget.keep_results]
    kept = list(messages)
    for place in older:
        text = text_of(kept[place])
        body = text.removeprefix(prefix)
        if len(body) >= budget.least_characters and _STUB_HEAD not in body:
            kept[place] = {**kept[place], "content": prefix + _shortened(body, budget.excerpt_characters)}
    return kept if kept != list(messages) else None


def _shortened(text: str, excerpt: int) -> str:
    """The line that stands for a result, between what stays of it."""
    if excerpt < 2:
        return _STUB.format(length=len(text))
    if len(text) <= excerpt + _MOST_STUB:
        return text
    half = excerpt // 2
    return f"{text[:half]}\n{_STUB.format(length=len(text) - 2 * half)}\n{text[-half:]}"


def text_of(message: Message) -> str:
    """The text of a message's content, images and other parts aside."""
    content = message.get("content")
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else ()
    return "".join(str(part.get("text") or "") for part in parts if isinstance(part, dict))


def _size(message: Message) -> int:
    calls = message.get("tool_calls")
    return counted_bytes(text_of(message)) + (len(json.dumps(calls)) if calls else 0)
