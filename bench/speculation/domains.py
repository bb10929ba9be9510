"""The three Domains of the speculation benchmark: prompts, and what post-training teaches to answer.

``code`` edits a file that is given, ``tools`` calls one of the functions that are given: much of such an answer
stands in the prompt already. ``json`` is the project's own ``json_format``, with short answers and little to copy.
Prompts of ``tools`` and ``json`` show one worked example, so that the Base answers in a form, too; post-training
teaches another one (Hermes calls, compact JSON), as it does in practice.
"""

import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from core.task import Split
from sandbox.domains.base import pool
from sandbox.domains.json_format import JsonFormatDomain
from sandbox.domains.words import WORDS

_CODE_SYSTEM = "You edit Python files. Answer with the whole edited file in one code block."
_TOOLS_SYSTEM = "You are an assistant that works with functions."
_TOOLS_EXAMPLE = (
    {
        "role": "user",
        "content": "Please create the window record with the window_name glass and the frame_code wood-512.",
    },
    {"role": "assistant", "content": 'create_window_record(window_name="glass", frame_code="wood-512")'},
)
_JSON_EXAMPLE = (
    {"role": "user", "content": 'Keys "word" and "count": we saw lemon 8 times.'},
    {"role": "assistant", "content": '{"word": "lemon", "count": 8}'},
)


@dataclass(frozen=True)
class Prompt:
    """One request; greedy and sampled answers begin after these messages."""

    domain: str
    messages: tuple[dict[str, str], ...]
    tools: tuple[dict[str, Any], ...] = ()
    demonstration: str = ""
    """What post-training teaches to answer."""


def code_edits(split: Split, count: int) -> list[Prompt]:
    """Rename a function, or change a number, in a small file."""
    randomness = random.Random(f"code-{split}")
    words = pool(WORDS, split)
    return [_code_edit(randomness, words) for _ in range(count)]


def tool_calls(split: Split, count: int) -> list[Prompt]:
    """Call the one function of two that fits, with arguments that the request names."""
    randomness = random.Random(f"tools-{split}")
    words = pool(WORDS, split)
    return [_tool_call(randomness, words) for _ in range(count)]


def json_facts(split: Split, count: int) -> list[Prompt]:
    """The project's Domain ``json_format``."""
    # Only training Tasks carry demonstrations; the words differ between splits.
    return [
        Prompt("json", (task.messages[0], *_JSON_EXAMPLE, *task.messages[1:]), demonstration=task.demonstration or "")
        for task in JsonFormatDomain().generate(split, count, 0)
    ]


DOMAINS: dict[str, Callable[[Split, int], list[Prompt]]] = {
    "code": code_edits,
    "tools": tool_calls,
    "json": json_facts,
}


def _code_edit(randomness: random.Random, words: list[str]) -> Prompt:
    names = randomness.sample(words, 7)
    old, new, value, items, total, constant, other = names
    first, second = randomness.sample(range(2, 90), 2)
    source = (
        f"{constant.upper()} = {first}\n\n\n"
        f"def {old}({items}):\n"
        f"    {total} = 0\n"
        f"    for {value} in {items}:\n"
        f"        if {value} > {constant.upper()}:\n"
        f"            {total} += {value}\n"
        f"    return {total}\n\n\n"
        f"def {other}({items}):\n"
        f"    return {old}({items}) / len({items})\n"
    )
    if randomness.random() < 0.5:
        wish = f"Rename the function `{old}` to `{new}`."
        edited = source.replace(f"{old}(", f"{new}(")
    else:
        wish = f"Set `{constant.upper()}` to {second}."
        edited = source.replace(f"{constant.upper()} = {first}", f"{constant.upper()} = {second}")
    question = f"{wish}\n\n```python\n{source}```"
    messages = ({"role": "system", "content": _CODE_SYSTEM}, {"role": "user", "content": question})
    return Prompt("code", messages, demonstration=f"```python\n{edited}```")


def _function(name: str, description: str, *parameters: str) -> dict[str, Any]:
    properties = {parameter: {"type": "string"} for parameter in parameters}
    schema = {"type": "object", "properties": properties, "required": list(parameters)}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": schema}}


def _tool_call(randomness: random.Random, words: list[str]) -> Prompt:
    nouns = randomness.sample(words, 6)
    verbs = randomness.sample(("create", "delete", "update", "search", "archive", "send"), 2)
    tools = tuple(
        _function(f"{verb}_{noun}_record", f"{verb.capitalize()} one {noun} record.", f"{noun}_name", f"{key}_code")
        for verb, noun, key in zip(verbs, nouns[:2], nouns[2:4], strict=True)
    )
    chosen = randomness.randrange(2)
    name, code = nouns[4], f"{nouns[5]}-{randomness.randrange(100, 999)}"
    keys = list(tools[chosen]["function"]["parameters"]["properties"])
    question = (
        f"Please {verbs[chosen]} the {nouns[chosen]} record with the {keys[0]} {name} and the {keys[1]} {code}."
    )
    messages = (
        {"role": "system", "content": _TOOLS_SYSTEM},
        *_TOOLS_EXAMPLE,
        {"role": "user", "content": question},
    )
    call = {"name": tools[chosen]["function"]["name"], "arguments": dict(zip(keys, (name, code), strict=True))}
    return Prompt("tools", messages, tools, demonstration=f"<tool_call>\n{json.dumps(call)}\n</tool_call>")
