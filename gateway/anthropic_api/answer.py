"""A chat completion as a message: content blocks, why it stopped, and what it used.

Source: https://docs.anthropic.com/en/api/messages; the same decisions as vLLM 0.32,
``entrypoints/anthropic/serving.py``.
"""

import base64
import hashlib
from typing import Any

import msgspec

from core.errors import EngineError
from gateway.anthropic_api.blocks import INVALID_JSON
from gateway.anthropic_api.fields import Json


def message_of(body: bytes, message_id: str) -> Json:
    """The message of a whole chat completion. Raises EngineError when it is none."""
    answer = decode_chat(body)
    choices = answer.get("choices")
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
        raise EngineError("the engine's answer has no choice")
    choice = choices[0]
    said = choice.get("message") or {}
    calls = said.get("tool_calls") or []
    content: list[Json] = []
    thinking = reasoning_of(said)
    if thinking:
        content.append({"type": "thinking", "thinking": thinking, "signature": signature_of(thinking)})
    if said.get("content"):
        content.append({"type": "text", "text": said["content"]})
    content += [_tool_use(call) for call in calls]
    arguments = [(call.get("function") or {}).get("arguments") or "" for call in calls]
    reason, stop = stop_reason_of(choice, [text_is_object(text) for text in arguments])
    return {
        "id": message_id,
        "type": "message",
        "role": "assistant",
        "model": answer.get("model"),
        # Clients look at the first block without asking whether there is one.
        "content": content or [{"type": "text", "text": ""}],
        "stop_reason": reason,
        "stop_sequence": stop,
        "usage": usage_of(answer.get("usage")),
    }


def decode_chat(data: bytes) -> Json:
    """A chat completion, or one chunk of it, as plain data. Raises EngineError when it is not a JSON object."""
    try:
        decoded = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise EngineError(f"the engine's answer cannot be read: {error}") from error
    if not isinstance(decoded, dict):
        raise EngineError("the engine's answer is not a JSON object")
    return decoded


def stop_reason_of(choice: Json, complete_calls: list[bool]) -> tuple[str, str | None]:
    """Anthropic's ``stop_reason`` and ``stop_sequence``; ``complete_calls`` says for each call if it can be run.

    vLLM tells a matched stop string in ``stop_reason``; an integer there is a stop token, no stop sequence. A call
    that a stop string cut short must not be run.
    """
    finish, stop = choice.get("finish_reason"), choice.get("stop_reason")
    if finish == "length":
        return "max_tokens", None
    if finish == "content_filter":
        return "refusal", None
    if complete_calls and all(complete_calls):
        return "tool_use", None
    if isinstance(stop, str):
        return "stop_sequence", stop
    return ("tool_use" if complete_calls or finish == "tool_calls" else "end_turn"), None


def usage_of(usage: Any) -> Json:
    """Anthropic's counts: input tokens are those that no cache held."""
    found = usage if isinstance(usage, dict) else {}
    details = found.get("prompt_tokens_details") or {}
    cached = details.get("cached_tokens") or 0
    return {
        "input_tokens": max(0, (found.get("prompt_tokens") or 0) - cached),
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "output_tokens": found.get("completion_tokens") or 0,
    }


def reasoning_of(said: Json) -> str:
    """The reasoning in a message or delta: vLLM says ``reasoning``, older engines ``reasoning_content``."""
    text = said.get("reasoning") or said.get("reasoning_content") or ""
    return text if isinstance(text, str) else ""


def signature_of(thinking: str) -> str:
    """What stands where Anthropic signs its thinking: clients keep only blocks that have one."""
    return base64.b64encode(hashlib.sha256(thinking.encode(errors="surrogatepass")).digest()).decode()


def text_is_object(text: str) -> bool:
    """Whether a call's arguments are whole."""
    return INVALID_JSON not in tool_input(text)


def tool_input(arguments: str) -> Json:
    """A call's arguments as data; what is not a JSON object is wrapped, so that nothing is lost or made up."""
    if not arguments.strip():
        return {}
    try:
        decoded = msgspec.json.decode(arguments)
    except (msgspec.DecodeError, RecursionError):
        decoded = None
    return decoded if isinstance(decoded, dict) else {INVALID_JSON: arguments}


def _tool_use(call: Json) -> Json:
    function = call.get("function") or {}
    return {
        "type": "tool_use",
        "id": call.get("id") or "",
        "name": function.get("name") or "",
        "input": tool_input(function.get("arguments") or ""),
    }
