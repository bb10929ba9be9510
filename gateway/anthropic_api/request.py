"""A Messages request as a chat completion request.

What only steers Anthropic's own servers (``cache_control``, ``service_tier``, betas) is left out; a field that
the Messages API does not know, such as ``seed`` or ``min_p``, passes to the engine.
Source: https://docs.anthropic.com/en/api/messages.
"""

from dataclasses import dataclass
from typing import Any

import msgspec

from core.errors import InvalidRequest
from gateway.anthropic_api.blocks import chat_messages, is_prefilled
from gateway.anthropic_api.errors import ThreadsUnsupported
from gateway.anthropic_api.fields import (
    Json,
    count_of,
    flag_of,
    list_of,
    name_of,
    object_of,
    one_of,
    required,
    text_of,
)
from gateway.anthropic_api.tools import chat_tool_choice, chat_tools
from gateway.inference.request import EPISODE_METADATA

_SAME = ("temperature", "top_p", "top_k")
_CONVERTED = frozenset(
    {
        "model",
        "messages",
        "system",
        "max_tokens",
        "stream",
        "stop_sequences",
        "tools",
        "tool_choice",
        "thinking",
        "output_config",
        "output_format",
        "metadata",
        *_SAME,
    }
)
_IGNORED = frozenset(
    {
        "anthropic_beta",
        "anthropic_version",
        "betas",
        "billing_policy",
        "cache_control",
        "compaction",
        "container",
        "context_management",
        "diagnostics",
        "fallback_credit_token",
        "fallbacks",
        "inference_geo",
        "service_tier",
        "speed",
        "thread",
        "user_profile_id",
        "workspace_id",
    }
)
_REFUSED = {
    "mcp_servers": "call MCP servers from your client and send their tools as custom tools",
    "n": "a message is one answer; send several requests",
    "stream_options": "a message stream always tells its usage",
}
_EFFORTS = ("low", "medium", "high", "xhigh", "max")
_LOW_BUDGET = 2048
_MEDIUM_BUDGET = 8192


@dataclass(frozen=True, slots=True)
class MessagesRequest:
    """A Messages request after its conversion."""

    chat_body: bytes
    """The JSON of the chat completion request."""
    stream: bool
    user_id: str | None
    """``metadata.user_id``: the caller's own name for the end user."""
    episode_id: str | None
    """``metadata.hone_episode_id``, for clients that cannot send headers."""


def read_messages_request(body: bytes) -> MessagesRequest:
    """Convert a request for a message. Raises InvalidRequest that names the field at fault."""
    fields = _decode(body)
    chat = _shared_fields(fields)
    chat["max_tokens"] = count_of(required(fields, "max_tokens"), "max_tokens")
    chat |= {name: fields[name] for name in _SAME if fields.get(name) is not None}
    if fields.get("stop_sequences"):
        stops = list_of(fields["stop_sequences"], "stop_sequences")
        chat["stop"] = [text_of(stop, f"stop_sequences.{index}") for index, stop in enumerate(stops)]
    stream = flag_of(fields.get("stream"), "stream")
    if stream:
        chat["stream"] = True
        # The usage of every chunk: a message tells its input tokens when it starts.
        chat["stream_options"] = {"include_usage": True, "continuous_usage_stats": True}
    metadata = object_of(fields.get("metadata") or {}, "metadata")
    user_id, episode_id = _named(metadata, "user_id"), _named(metadata, EPISODE_METADATA)
    if user_id is not None:
        chat["user"] = user_id
    return MessagesRequest(chat_body=msgspec.json.encode(chat), stream=stream, user_id=user_id, episode_id=episode_id)


def read_count_request(body: bytes) -> bytes:
    """The chat completion request whose prompt is to be counted. Raises InvalidRequest."""
    return msgspec.json.encode(_shared_fields(_decode(body)))


def _decode(body: bytes) -> Json:
    try:
        fields = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequest(f"the body is not valid JSON: {error}") from error
    return object_of(fields, "body")


def _shared_fields(fields: Json) -> Json:
    """What a prompt is made of, and what the Messages API does not know."""
    for name, hint in _REFUSED.items():
        if fields.get(name):
            raise InvalidRequest(f"{name}: not supported by this API", hint=hint, param=name)
    if fields.get("thread"):
        raise ThreadsUnsupported(
            "thread: no history is held here", hint="send all messages without 'thread'", param="thread"
        )
    chat: Json = {
        name: value
        for name, value in fields.items()
        if name not in _CONVERTED and name not in _IGNORED and name not in _REFUSED
    }
    chat["model"] = name_of(required(fields, "model"), "model")
    chat["messages"] = chat_messages(fields)
    if is_prefilled(chat["messages"]):
        chat["add_generation_prompt"] = False
        chat["continue_final_message"] = True
    tools = chat_tools(fields.get("tools"))
    if tools:
        chat["tools"] = tools
        chat |= chat_tool_choice(fields.get("tool_choice"))
    return chat | _thinking(fields.get("thinking")) | _output(fields)


def _thinking(thinking: Any) -> Json:
    """How hard the model thinks. Engines refuse a budget in tokens that they are not set up for, so it is a grade."""
    if thinking is None:
        return {}
    found = object_of(thinking, "thinking")
    kind = one_of(found.get("type"), ("enabled", "disabled", "adaptive"), "thinking.type")
    if kind == "disabled":
        return {"reasoning_effort": "none"}
    if kind == "adaptive":
        return {}
    budget = count_of(required(found, "budget_tokens", "thinking"), "thinking.budget_tokens")
    effort = "low" if budget <= _LOW_BUDGET else "medium" if budget <= _MEDIUM_BUDGET else "high"
    return {"reasoning_effort": effort}


def _output(fields: Json) -> Json:
    config = object_of(fields.get("output_config") or {}, "output_config")
    chat: Json = {}
    if config.get("effort") is not None:
        chat["reasoning_effort"] = one_of(config["effort"], _EFFORTS, "output_config.effort")
    form = config.get("format") or fields.get("output_format")
    if form is not None:
        found = object_of(form, "output_config.format")
        one_of(found.get("type"), ("json_schema",), "output_config.format.type")
        schema = object_of(required(found, "schema", "output_config.format"), "output_config.format.schema")
        chat["response_format"] = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
    return chat


def _named(metadata: Json, name: str) -> str | None:
    value = metadata.get(name)
    return None if value is None else text_of(value, f"metadata.{name}")
