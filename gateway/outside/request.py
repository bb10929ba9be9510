"""A client's chat completion body as the arguments of LiteLLM's ``acompletion``. Pure.

Only the fields of the OpenAI API become arguments. LiteLLM takes keys, addresses and callbacks by the same way, so
everything else goes into ``extra_body``, which reaches the provider and steers nothing on this side.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from core.config.outside import OutsideProvider
from core.errors import InvalidRequest

OPENAI_FIELDS = frozenset(
    {
        "messages",
        "audio",
        "frequency_penalty",
        "function_call",
        "functions",
        "logit_bias",
        "logprobs",
        "max_completion_tokens",
        "max_tokens",
        "modalities",
        "n",
        "parallel_tool_calls",
        "prediction",
        "presence_penalty",
        "prompt_cache_key",
        "reasoning_effort",
        "response_format",
        "safety_identifier",
        "seed",
        "service_tier",
        "stop",
        "temperature",
        "thinking",
        "tool_choice",
        "tools",
        "top_logprobs",
        "top_p",
        "user",
        "verbosity",
        "web_search_options",
    }
)
"""Fields of the chat completions API, and ``thinking``, which LiteLLM has for every provider."""
_SAMPLING_FIELDS = frozenset({"min_p", "repetition_penalty", "top_k"})
"""Not OpenAI's, but known to several providers: LiteLLM puts them where each one wants them."""
_ARGUMENTS = OPENAI_FIELDS | _SAMPLING_FIELDS
_OURS = frozenset(
    {"model", "stream", "stream_options", "store", "metadata", "add_generation_prompt", "continue_final_message"}
)
"""Answered on this side, or meant for an engine's chat template: providers continue a last assistant message."""
_REFUSED = frozenset(
    {"api_base", "api_key", "api_version", "azure_ad_token", "base_url", "extra_body", "extra_headers", "extra_query"}
)
"""Options of client libraries, not fields of a request; some of them would change where a request goes."""


def prefix_of(model: str) -> str:
    """The provider in an outside model's name: ``openai`` in ``openai/gpt-5``; empty where there is none."""
    prefix, slash, name = model.partition("/")
    return prefix if slash and name else ""


def completion_arguments(model: str, body: bytes, provider: OutsideProvider, *, stream: bool) -> dict[str, Any]:
    """The keyword arguments for ``acompletion``. Raises InvalidRequest."""
    fields = _decode(body)
    refused = sorted(_REFUSED & fields.keys())
    if refused:
        raise InvalidRequest(
            f"'{refused[0]}' cannot be sent to an outside model", hint="leave it out", param=refused[0]
        )
    arguments = {name: fields[name] for name in _ARGUMENTS if fields.get(name) is not None}
    messages = arguments.get("messages")
    if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
        raise InvalidRequest("'messages' must be a list of messages", param="messages")
    arguments["messages"] = [_message(message) for message in messages]
    extra = {name: value for name, value in fields.items() if name not in _ARGUMENTS and name not in _OURS}
    arguments |= {
        "model": model,
        "stream": stream,
        "timeout": provider.timeout_seconds,
        "num_retries": 0,
        "max_retries": 0,
        "drop_params": False,
        "no-log": True,
    }
    if stream:
        # The record needs the usage; who did not ask for it does not see it.
        arguments["stream_options"] = {"include_usage": True}
    if extra:
        arguments["extra_body"] = extra
    if provider.api_key.get_secret_value():
        arguments["api_key"] = provider.api_key.get_secret_value()
    if provider.base_url:
        arguments["base_url"] = provider.base_url
    if provider.headers:
        arguments["extra_headers"] = {name: value.get_secret_value() for name, value in provider.headers.items()}
    return arguments


def _message(message: Mapping[str, Any]) -> dict[str, Any]:
    """vLLM's name of an assistant's reasoning as LiteLLM has it."""
    found = dict(message)
    reasoning = found.pop("reasoning", None)
    if isinstance(reasoning, str):
        found.setdefault("reasoning_content", reasoning)
    return found


def _decode(body: bytes) -> dict[str, Any]:
    try:
        fields = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequest(f"the body is not a JSON object: {error}") from error
    if not isinstance(fields, dict):
        raise InvalidRequest("the body is not a JSON object")
    return fields
