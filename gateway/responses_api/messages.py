"""Items of the Responses API as chat messages, and back: pure functions."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from core.errors import InvalidRequest
from core.message import Message

Item = Mapping[str, Any]

_ROLES = {"user": "user", "system": "system", "developer": "system", "assistant": "assistant"}
"""Chat templates know no developer; it ranks as the system does."""
_TEXTS = ("input_text", "output_text", "text", "summary_text", "reasoning_text")
_SILENT = frozenset({"mcp_list_tools", "additional_tools"})
"""Items that tell the model nothing."""


@dataclass(frozen=True, slots=True)
class Approval:
    """A client's answer to an ``mcp_approval_request``."""

    call_id: str
    approve: bool
    reason: str | None


@dataclass(slots=True)
class Conversation:
    """Chat messages, and the approvals among the items that they were made of."""

    messages: list[Message] = field(default_factory=list)
    approvals: list[Approval] = field(default_factory=list)


def function_name(kind: str, server_label: str | None, tool_name: str | None) -> str:
    """What a hosted tool is called in messages when the request at hand does not offer it."""
    return kind if tool_name is None else tool_name


def conversation_of(
    items: Sequence[Item], *, name_of: Callable[[str, str | None, str | None], str] = function_name
) -> Conversation:
    """The chat messages that items stand for.

    Reasoning, text and function calls that follow each other are one assistant message, as the model said it. Raises
    InvalidRequest, with ``param``, for an item that cannot be shown to a chat model.
    """
    builder = _Builder(name_of)
    for number, item in enumerate(items):
        builder.add(item, f"input[{number}]")
    builder.flush()
    return builder.conversation


class _Builder:
    """Takes items one by one; ``_open`` is the assistant message that still grows."""

    def __init__(self, name_of: Callable[[str, str | None, str | None], str]) -> None:
        self._name_of = name_of
        self._open: Message | None = None
        self.conversation = Conversation()

    def add(self, item: Item, param: str) -> None:
        kind = item.get("type") or "message"
        handler = _HANDLERS.get(kind)
        if handler is not None:
            handler(self, item, param)
        elif kind not in _SILENT:
            raise InvalidRequest(f"items of type '{kind}' are not supported", param=f"{param}.type")

    def flush(self) -> None:
        if self._open is not None:
            self._open.setdefault("content", None)
            self.conversation.messages.append(self._open)
            self._open = None

    def _assistant(self, *, fresh_if: Sequence[str] = ()) -> Message:
        if self._open is not None and any(name in self._open for name in fresh_if):
            self.flush()
        if self._open is None:
            self._open = {"role": "assistant"}
        return self._open

    def _append(self, message: Message) -> None:
        self.flush()
        self.conversation.messages.append(message)

    def _message(self, item: Item, param: str) -> None:
        role = _ROLES.get(str(item.get("role")))
        if role is None:
            raise InvalidRequest(f"'{param}.role' must be one of {', '.join(_ROLES)}", param=f"{param}.role")
        content = item.get("content")
        if role == "assistant":
            self._assistant(fresh_if=("content", "tool_calls"))["content"] = text_of(content, f"{param}.content")
        else:
            self._append({"role": role, "content": _content(content, f"{param}.content")})

    def _reasoning(self, item: Item, param: str) -> None:
        parts = item.get("content") or item.get("summary") or []
        text = text_of(parts, f"{param}.content")
        if text:
            message = self._assistant(fresh_if=("content", "tool_calls"))
            message["reasoning"] = message.get("reasoning", "") + text

    def _call(self, call_id: str, name: str, arguments: str) -> None:
        calls = self._assistant().setdefault("tool_calls", [])
        calls.append({"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}})

    def _function_call(self, item: Item, param: str) -> None:
        call_id, name = _text_field(item, "call_id", param), _text_field(item, "name", param)
        self._call(call_id, name, _text_field(item, "arguments", param))

    def _function_output(self, item: Item, param: str) -> None:
        output = _content(item.get("output"), f"{param}.output")
        self._result(_text_field(item, "call_id", param), output)

    def _result(self, call_id: str, content: Any) -> None:
        self._append({"role": "tool", "tool_call_id": call_id, "content": content})

    def _code(self, item: Item, param: str) -> None:
        call_id = _text_field(item, "id", param)
        arguments = json.dumps({"code": item.get("code") or ""}, ensure_ascii=False)
        self._call(call_id, self._name_of("code_interpreter", None, None), arguments)
        outputs = item.get("outputs")
        logs = [
            str(one.get("logs", ""))
            for one in (outputs if isinstance(outputs, list) else ())
            if isinstance(one, dict) and one.get("type") == "logs"
        ]
        self._result(call_id, "".join(logs))

    def _shell_call(self, item: Item, param: str) -> None:
        action = {name: value for name, value in _object(item, "action", param).items() if value is not None}
        self._call(
            _text_field(item, "call_id", param),
            self._name_of("shell", None, None),
            json.dumps(action, ensure_ascii=False),
        )

    def _shell_output(self, item: Item, param: str) -> None:
        output = item.get("output")
        if not isinstance(output, list):
            raise InvalidRequest(f"'{param}.output' must be a list", param=f"{param}.output")
        self._result(_text_field(item, "call_id", param), shell_text(output))

    def _local_shell_call(self, item: Item, param: str) -> None:
        action = _object(item, "action", param)
        kept = {name: value for name, value in action.items() if name != "type" and value}
        arguments = json.dumps(kept, ensure_ascii=False)
        self._call(_text_field(item, "call_id", param), "local_shell", arguments)

    def _local_shell_output(self, item: Item, param: str) -> None:
        call_id = item.get("call_id") or _text_field(item, "id", param)
        self._result(str(call_id), str(item.get("output", "")))

    def _mcp_call(self, item: Item, param: str) -> None:
        call_id = str(item.get("approval_request_id") or _text_field(item, "id", param))
        if item.get("approval_request_id") is None:
            self._call(call_id, self._mcp_name(item), _text_field(item, "arguments", param))
        error = item.get("error")
        self._result(call_id, str(item.get("output") or "") if error is None else f"error: {json.dumps(error)}")

    def _approval_request(self, item: Item, param: str) -> None:
        self._call(_text_field(item, "id", param), self._mcp_name(item), _text_field(item, "arguments", param))

    def _approval(self, item: Item, param: str) -> None:
        call_id = _text_field(item, "approval_request_id", param)
        reason = item.get("reason")
        self.flush()
        self.conversation.approvals.append(
            Approval(call_id, item.get("approve") is True, reason if isinstance(reason, str) else None)
        )

    def _mcp_name(self, item: Item) -> str:
        return self._name_of("mcp", item.get("server_label"), item.get("name"))


_HANDLERS: Mapping[str, Callable[[_Builder, Item, str], None]] = {
    "message": _Builder._message,
    "reasoning": _Builder._reasoning,
    "function_call": _Builder._function_call,
    "function_call_output": _Builder._function_output,
    "code_interpreter_call": _Builder._code,
    "shell_call": _Builder._shell_call,
    "shell_call_output": _Builder._shell_output,
    "local_shell_call": _Builder._local_shell_call,
    "local_shell_call_output": _Builder._local_shell_output,
    "mcp_call": _Builder._mcp_call,
    "mcp_approval_request": _Builder._approval_request,
    "mcp_approval_response": _Builder._approval,
}


def shell_text(output: Sequence[Any]) -> str:
    """The outputs of a shell call as the model reads them."""
    parts = []
    for one in output:
        one = one if isinstance(one, dict) else {}
        outcome = one["outcome"] if isinstance(one.get("outcome"), dict) else {}
        ended = "timed out" if outcome.get("type") == "timeout" else f"exit code {outcome.get('exit_code', 0)}"
        parts.append(f"{one.get('stdout') or ''}{one.get('stderr') or ''}[{ended}]")
    return "\n".join(parts)


def text_of(content: Any, param: str) -> str:
    """The text of a content that may only hold text."""
    if isinstance(content, str):
        return content
    texts = []
    for number, part in enumerate(_parts(content, param)):
        if part.get("type") == "refusal":
            texts.append(str(part.get("refusal", "")))
        elif part.get("type") in _TEXTS:
            texts.append(_text_field(part, "text", f"{param}[{number}]"))
        else:
            raise InvalidRequest(f"'{param}[{number}]' must be text here", param=f"{param}[{number}].type")
    return "".join(texts)


def _content(content: Any, param: str) -> Any:
    """A chat message's content: a string where there is only one text."""
    if isinstance(content, str):
        return content
    parts = [_part(part, f"{param}[{number}]") for number, part in enumerate(_parts(content, param))]
    if not parts:
        return ""
    return parts[0]["text"] if len(parts) == 1 and parts[0]["type"] == "text" else parts


def _part(part: Item, param: str) -> dict[str, Any]:
    kind = part.get("type")
    if kind in _TEXTS:
        return {"type": "text", "text": _text_field(part, "text", param)}
    if kind == "input_image":
        url = part.get("image_url")
        if not isinstance(url, str):
            raise InvalidRequest("an image needs 'image_url'; uploaded files are not supported", param=param)
        detail = part.get("detail")
        return {"type": "image_url", "image_url": {"url": url} | ({"detail": detail} if detail else {})}
    if kind == "input_file" and isinstance(part.get("file_data"), str):
        return {"type": "file", "file": {name: part[name] for name in ("filename", "file_data") if name in part}}
    if kind == "input_audio":
        return {"type": "input_audio", "input_audio": part.get("input_audio")}
    if kind in ("image_url", "file", "refusal"):
        return dict(part)
    raise InvalidRequest(f"content of type '{kind}' is not supported", param=f"{param}.type")


def _parts(content: Any, param: str) -> Sequence[Item]:
    if not isinstance(content, list) or not all(isinstance(part, dict) for part in content):
        raise InvalidRequest(f"'{param}' must be a string or a list of content parts", param=param)
    return content


def _text_field(item: Item, name: str, param: str) -> str:
    value = item.get(name)
    if not isinstance(value, str):
        raise InvalidRequest(f"'{param}.{name}' must be a string", param=f"{param}.{name}")
    return value


def _object(item: Item, name: str, param: str) -> Mapping[str, Any]:
    value = item.get(name)
    if not isinstance(value, dict):
        raise InvalidRequest(f"'{param}.{name}' must be an object", param=f"{param}.{name}")
    return value


def with_instructions(messages: Sequence[Message], instructions: str | None) -> list[Message]:
    """Messages for a chat model: instructions first, in one system message with those that open the conversation.

    Many chat templates take only one system message, and only in front.
    """
    opening = [] if instructions is None else [instructions]
    start = 0
    for message in messages:
        if message.get("role") != "system" or not isinstance(message.get("content"), str):
            break
        opening.append(message["content"])
        start += 1
    system: list[Message] = [{"role": "system", "content": "\n\n".join(opening)}] if opening else []
    return system + list(messages[start:])


def shortened(messages: Sequence[Message]) -> list[Message] | None:
    """Without the oldest half of what can go; None: nothing can. The last user message and system messages stay.

    A cut never parts a tool's result from its call.
    """
    users = [number for number, message in enumerate(messages) if message.get("role") == "user"]
    if len(users) < 2:
        return None
    cut = users[(len(users) + 1) // 2]
    kept = [message for message in messages[:cut] if message.get("role") == "system"]
    return kept + list(messages[cut:])
