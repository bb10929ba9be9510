"""The chat completion underneath a response: its body."""

from collections.abc import Sequence
from typing import Any

import msgspec

from core.message import Message
from gateway.responses_api.messages import with_instructions
from gateway.responses_api.request import ResponsesRequest, text_format

_encode = msgspec.json.Encoder().encode


def chat_body(
    request: ResponsesRequest,
    messages: Sequence[Message],
    tools: Sequence[dict[str, Any]],
    tool_choice: Any,
    tokens_left: int | None,
) -> bytes:
    """The JSON body of one model call; ``tokens_left`` is what remains of ``max_output_tokens``."""
    fields: dict[str, Any] = dict(request.engine_fields)
    fields["model"] = request.model
    fields["messages"] = with_instructions(messages, request.instructions)
    if tools:
        fields["tools"] = list(tools)
        fields["tool_choice"] = tool_choice
        fields["parallel_tool_calls"] = request.parallel_tool_calls
    response_format = text_format(request)
    if response_format is not None:
        fields["response_format"] = response_format
    optional = {
        "temperature": request.temperature,
        "top_p": request.top_p,
        "max_completion_tokens": tokens_left,
        "reasoning_effort": request.reasoning.get("effort"),
        "verbosity": request.text.get("verbosity"),
    }
    fields |= {name: value for name, value in optional.items() if value is not None}
    if request.wants_logprobs:
        fields |= {"logprobs": True, "top_logprobs": request.top_logprobs or 0}
    if request.stream:
        fields |= {"stream": True, "stream_options": {"include_usage": True}}
    return _encode(fields)
