"""Scripted answers of the fake engine: texts, reasoning and tool calls, token by token as vLLM parses them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from serving.engines.fake_model import IM_END, Generation, encode, prompt_logprobs


@dataclass(frozen=True)
class ScriptedAnswer:
    """What the engine says instead of its toy model."""

    text: str = ""
    reasoning: str = ""
    calls: tuple[tuple[str, str], ...] = ()
    """Names and arguments of tool calls."""


def scripted(identity: str, prompt_ids: Sequence[int], answer: ScriptedAnswer, max_tokens: int) -> Generation:
    """The answer as sampled tokens, cut off after ``max_tokens``."""
    deltas: list[dict[str, Any]] = []
    tokens: list[int] = []

    def say(text: str, delta: dict[str, Any] | None = None, field: str = "content") -> None:
        for character in text:
            shown = {field: character} if delta is None else {}
            tokens.extend(encode(character))
            deltas.extend([{}] * (len(tokens) - len(deltas) - 1))
            deltas.append(shown)
        if delta is not None:
            deltas[-1] = delta

    say(answer.reasoning, field="reasoning")
    say(answer.text)
    calls = []
    for index, (name, arguments) in enumerate(answer.calls):
        identifier = f"call_{len(prompt_ids)}_{index}"
        head = {"index": index, "id": identifier, "type": "function", "function": {"name": name, "arguments": ""}}
        say(name, {"tool_calls": [head]})
        for character in arguments:
            say(character, {"tool_calls": [{"index": index, "function": {"arguments": character}}]})
        function = {"name": name, "arguments": arguments}
        calls.append({"id": identifier, "type": "function", "function": function})
    tokens.append(IM_END)
    deltas.append({})
    finish = "tool_calls" if calls else "stop"
    text = answer.text
    if len(tokens) > max_tokens:
        tokens, deltas, finish, calls = tokens[:max_tokens], deltas[:max_tokens], "length", []
        text = "".join(delta.get("content", "") for delta in deltas)
    known = prompt_logprobs(identity, [*prompt_ids, *tokens])[len(prompt_ids) :]
    message: dict[str, Any] = {"content": text or None, "reasoning": answer.reasoning or None}
    if calls:
        message["tool_calls"] = calls
    return Generation(
        token_ids=tokens,
        logprobs=[0.0 if value is None else value for value in known],
        pieces=[delta.get("content", "") for delta in deltas],
        finish_reason=finish,
        stop_reason=None,
        deltas=deltas,
        message=message,
    )
