"""Anthropic's messages as chat messages: content blocks become text, parts, tool calls and tool messages.

Source: https://docs.anthropic.com/en/api/messages; the reverse of ``answer.py``. An assistant's blocks are put
together exactly as ``answer.py`` took them apart, so that a conversation that is sent again repeats its prompt.
"""

from collections.abc import Iterable
from typing import Any

import msgspec

from core.errors import InvalidRequest
from gateway.anthropic_api.fields import Json, flag_of, list_of, name_of, object_of, one_of, required, text_of

_CLIENT_LINE = "x-anthropic-billing-header"
"""Agent CLIs put a line with a hash that differs in every request before their system prompt: it would make
every prompt prefix unique, and says nothing to a model."""
_ROLES = ("user", "assistant", "system")
INVALID_JSON = "INVALID_JSON"
"""Key that wraps tool input which is not a JSON object, as Anthropic's documentation of fine-grained tool
streaming has it."""


def chat_messages(body: Json) -> list[Json]:
    """The chat messages of a request's ``system`` and ``messages``. Raises InvalidRequest."""
    messages = list_of(required(body, "messages"), "messages")
    if not messages:
        raise InvalidRequest("messages: at least one message is required", param="messages")
    system = _system_text(body.get("system"), "system")
    chat: list[Json] = [{"role": "system", "content": system}] if system else []
    for index, message in enumerate(messages):
        chat += _convert(object_of(message, f"messages.{index}"), f"messages.{index}")
    return chat


def is_prefilled(chat: list[Json]) -> bool:
    """Whether the last message is the beginning of the answer, which the model is to continue."""
    last = chat[-1]
    return last["role"] == "assistant" and bool(last.get("content")) and "tool_calls" not in last


def _convert(message: Json, place: str) -> list[Json]:
    role = one_of(required(message, "role", place), _ROLES, f"{place}.role")
    content = required(message, "content", place)
    place = f"{place}.content"
    if role == "system":
        text = _system_text(content, place)
        return [{"role": "system", "content": text}] if text else []
    if isinstance(content, str):
        return [{"role": role, "content": content}]
    blocks = [_block(block, f"{place}.{index}") for index, block in enumerate(list_of(content, place))]
    return _user(blocks, place) if role == "user" else [_assistant(blocks, place)]


def _block(block: Any, place: str) -> Json:
    found = object_of(block, place)
    text_of(required(found, "type", place), f"{place}.type")
    return found


def _system_text(content: Any, place: str) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return "" if content.startswith(_CLIENT_LINE) else content
    texts = []
    for index, block in enumerate(list_of(content, place)):
        found = _block(block, f"{place}.{index}")
        if found["type"] != "text":
            raise _unsupported(found["type"], f"{place}.{index}", "a system prompt consists of text blocks")
        text = text_of(required(found, "text", f"{place}.{index}"), f"{place}.{index}.text")
        if text and not text.startswith(_CLIENT_LINE):
            texts.append(text)
    return "\n\n".join(texts)


def _user(blocks: list[Json], place: str) -> list[Json]:
    """Tool messages first, because chat models want them right behind their calls; then what else was said."""
    tools: list[Json] = []
    parts: list[Json] = []
    for index, block in enumerate(blocks):
        where = f"{place}.{index}"
        if block["type"] == "tool_result":
            text, images = _tool_result(block, where)
            call = name_of(required(block, "tool_use_id", where), f"{where}.tool_use_id")
            tools.append({"role": "tool", "tool_call_id": call, "content": text})
            parts += images
        else:
            parts += _part(block, where)
    if not parts and tools:
        return tools
    return [*tools, {"role": "user", "content": _plain_if_text(parts)}]


def _part(block: Json, place: str) -> list[Json]:
    kind = block["type"]
    if kind == "text":
        text = text_of(required(block, "text", place), f"{place}.text")
        return [{"type": "text", "text": text}] if text else []
    if kind == "image":
        return [_image(block, place)]
    if kind == "document":
        return [_document(block, place)]
    if kind == "search_result":
        return [_search_result(block, place)]
    raise _unsupported(kind, place, "use text, image, document, search_result or tool_result blocks")


def _image(block: Json, place: str) -> Json:
    source = object_of(required(block, "source", place), f"{place}.source")
    kind = one_of(source.get("type"), ("base64", "url"), f"{place}.source.type")
    if kind == "url":
        url = name_of(required(source, "url", f"{place}.source"), f"{place}.source.url")
    else:
        media_type = name_of(required(source, "media_type", f"{place}.source"), f"{place}.source.media_type")
        data = name_of(required(source, "data", f"{place}.source"), f"{place}.source.data")
        url = f"data:{media_type};base64,{data}"
    return {"type": "image_url", "image_url": {"url": url}}


def _document(block: Json, place: str) -> Json:
    source = object_of(required(block, "source", place), f"{place}.source")
    if source.get("type") != "text":
        raise _unsupported("document", place, "send its text: only plain-text documents can be read here")
    data = text_of(required(source, "data", f"{place}.source"), f"{place}.source.data")
    title = block.get("title")
    return {"type": "text", "text": f"{title}\n\n{data}" if isinstance(title, str) and title else data}


def _search_result(block: Json, place: str) -> Json:
    lines = [text_of(block.get(name) or "", f"{place}.{name}") for name in ("title", "source")]
    for index, item in enumerate(list_of(required(block, "content", place), f"{place}.content")):
        where = f"{place}.content.{index}"
        lines.append(text_of(required(_block(item, where), "text", where), f"{where}.text"))
    return {"type": "text", "text": "\n".join(line for line in lines if line)}


def _tool_result(block: Json, place: str) -> tuple[str, list[Json]]:
    content = block.get("content")
    parts: list[Json] = []
    if isinstance(content, str):
        parts = [{"type": "text", "text": content}]
    elif content is not None:
        for index, item in enumerate(list_of(content, f"{place}.content")):
            where = f"{place}.content.{index}"
            parts += _part(_block(item, where), where)
    text = "\n".join(part["text"] for part in parts if part["type"] == "text")
    if flag_of(block.get("is_error"), f"{place}.is_error") and not text.lower().startswith("error"):
        # Chat messages have no flag for it, and a model must be able to tell a failure from a result.
        text = f"Error: {text}" if text else "Error"
    return text, [part for part in parts if part["type"] != "text"]


def _assistant(blocks: list[Json], place: str) -> Json:
    texts, reasoning, calls = [], [], []
    for index, block in enumerate(blocks):
        where, kind = f"{place}.{index}", block["type"]
        if kind == "text":
            texts.append(text_of(required(block, "text", where), f"{where}.text"))
        elif kind == "thinking":
            reasoning.append(text_of(block.get("thinking") or "", f"{where}.thinking"))
        elif kind == "tool_use":
            calls.append(_tool_call(block, where))
        elif kind != "redacted_thinking":
            raise _unsupported(kind, where, "use text, thinking or tool_use blocks")
    message: Json = {"role": "assistant", "content": "".join(texts)}
    if calls:
        message["tool_calls"] = calls
        message["content"] = message["content"] or None
    if any(reasoning):
        message["reasoning"] = "".join(reasoning)
    return message


def _tool_call(block: Json, place: str) -> Json:
    given = object_of(block.get("input") if block.get("input") is not None else {}, f"{place}.input")
    broken = given.get(INVALID_JSON) if len(given) == 1 else None
    arguments = broken if isinstance(broken, str) else msgspec.json.encode(given).decode()
    return {
        "id": name_of(required(block, "id", place), f"{place}.id"),
        "type": "function",
        "function": {
            "name": name_of(required(block, "name", place), f"{place}.name"),
            "arguments": arguments,
        },
    }


def _plain_if_text(parts: Iterable[Json]) -> str | list[Json]:
    """One text where there is nothing else: every chat template takes that."""
    listed = list(parts)
    if all(part["type"] == "text" for part in listed):
        return "\n".join(part["text"] for part in listed)
    return listed


def _unsupported(kind: str, place: str, hint: str) -> InvalidRequest:
    return InvalidRequest(f"{place}: a block of type '{kind}' is not supported", hint=hint, param=place)
