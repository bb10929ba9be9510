"""A request of the Responses API, read leniently: what nobody here knows passes to the engine.

Source: OpenAI Responses API, ``POST /v1/responses``.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec
from msgspec import Raw

from core.errors import InvalidRequest
from gateway.inference.request import Fields, value_of

Item = dict[str, Any]

_decode_fields = msgspec.json.Decoder(Fields).decode

MAX_METADATA = 16
MAX_METADATA_KEY = 64
MAX_METADATA_VALUE = 512
MAX_TOP_LOGPROBS = 20

_OWN_FIELDS = frozenset(
    {
        "access_programs", "background", "background_options", "context_management", "conversation", "image",
        "include", "input", "instructions", "max_output_tokens", "max_tool_calls", "metadata", "model", "moderation",
        "parallel_tool_calls", "previous_response_id", "prompt", "prompt_cache_options", "prompt_cache_retention",
        "reasoning", "store", "stream", "stream_options", "temperature", "text", "tool_choice", "tools",
        "top_logprobs", "top_p", "truncation",
    }
)  # fmt: skip
"""Fields that mean something only in the Responses API, or that chat completions call otherwise."""
_ECHOED = ("user", "safety_identifier", "prompt_cache_key")
_CHAT_ONLY = frozenset({"messages", "n", "max_tokens", "max_completion_tokens", "response_format", "logprobs"})
_UNSUPPORTED = {
    "conversation": "send 'previous_response_id', or the earlier items in 'input'",
    "prompt": "send 'instructions' and 'input' instead of a stored prompt",
}


@dataclass(frozen=True, slots=True)
class ResponsesRequest:
    """A request with the values that this API must understand."""

    model: str
    input: list[Item]
    instructions: str | None
    tools: list[Item]
    tool_choice: Any
    parallel_tool_calls: bool
    text: Mapping[str, Any]
    reasoning: Mapping[str, Any]
    temperature: float | None
    top_p: float | None
    top_logprobs: int | None
    max_output_tokens: int | None
    max_tool_calls: int | None
    metadata: dict[str, str]
    store: bool
    stream: bool
    previous_response_id: str | None
    truncation: str
    include: frozenset[str]
    engine_fields: Fields = field(default_factory=dict)
    """Every other field, as raw JSON, for the chat completion."""

    echoed: dict[str, str] = field(default_factory=dict)
    """Those of them that the response names."""

    @property
    def wants_logprobs(self) -> bool:
        """Whether output texts carry the log-probs of their tokens."""
        return "message.output_text.logprobs" in self.include or bool(self.top_logprobs)


def parse_responses_request(body: bytes) -> ResponsesRequest:
    """Read a request body; raises InvalidRequest with ``param`` for what cannot be honoured."""
    fields = _fields_of(body)
    _refuse_unsupported(fields)
    model = value_of(fields, "model")
    if not isinstance(model, str) or not model:
        raise InvalidRequest("'model' must name a model", param="model")
    truncation = _typed(fields, "truncation", str) or "disabled"
    if truncation not in ("auto", "disabled"):
        raise InvalidRequest("'truncation' must be 'auto' or 'disabled'", param="truncation")
    store = _typed(fields, "store", bool)
    parallel = _typed(fields, "parallel_tool_calls", bool)
    return ResponsesRequest(
        model=model,
        input=_input_items(fields),
        instructions=_typed(fields, "instructions", str),
        tools=_objects(fields, "tools"),
        tool_choice=_typed(fields, "tool_choice", str, dict) or "auto",
        parallel_tool_calls=True if parallel is None else parallel,
        text=_typed(fields, "text", dict) or {},
        reasoning=_typed(fields, "reasoning", dict) or {},
        temperature=_number(fields, "temperature", 0, 2),
        top_p=_number(fields, "top_p", 0, 1),
        top_logprobs=_count(fields, "top_logprobs", 0, MAX_TOP_LOGPROBS),
        max_output_tokens=_count(fields, "max_output_tokens", 1, None),
        max_tool_calls=_count(fields, "max_tool_calls", 0, None),
        metadata=_metadata(fields),
        store=True if store is None else store,
        stream=bool(_typed(fields, "stream", bool)),
        previous_response_id=_typed(fields, "previous_response_id", str) or None,
        truncation=truncation,
        include=frozenset(one for one in _typed(fields, "include", list) or () if isinstance(one, str)),
        engine_fields={name: raw for name, raw in fields.items() if name not in _OWN_FIELDS},
        echoed={name: value for name in _ECHOED if isinstance(value := value_of(fields, name), str)},
    )


def text_format(request: ResponsesRequest) -> dict[str, Any] | None:
    """``text.format`` as chat completions' ``response_format``; None for plain text."""
    wanted = request.text.get("format")
    if wanted is None:
        return None
    kind = wanted.get("type") if isinstance(wanted, dict) else None
    if kind == "text":
        return None
    if kind == "json_object":
        return {"type": "json_object"}
    if kind == "json_schema":
        if not isinstance(wanted.get("schema"), dict) or not isinstance(wanted.get("name"), str):
            raise InvalidRequest("'text.format' needs 'name' and 'schema'", param="text.format.schema")
        schema = {name: wanted[name] for name in ("name", "description", "schema", "strict") if name in wanted}
        return {"type": "json_schema", "json_schema": schema}
    raise InvalidRequest(
        "'text.format.type' must be 'text', 'json_object' or 'json_schema'", param="text.format.type"
    )


def _fields_of(body: bytes) -> Fields:
    try:
        body.decode()
        return _decode_fields(body)
    except UnicodeDecodeError as error:
        raise InvalidRequest("the body is not UTF-8") from error
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidRequest(f"the body is not a JSON object: {error}") from error


def _refuse_unsupported(fields: Fields) -> None:
    for name, hint in _UNSUPPORTED.items():
        if value_of(fields, name) is not None:
            raise InvalidRequest(f"'{name}' is not supported", hint=hint, param=name)
    if _typed(fields, "background", bool):
        raise InvalidRequest(
            "responses are not run in the background", hint="leave 'background' out, or stream", param="background"
        )
    for name in sorted(_CHAT_ONLY & fields.keys()):
        raise InvalidRequest(f"'{name}' belongs to /v1/chat/completions", hint="use this API's own field", param=name)


def _typed(fields: Fields, name: str, *kinds: type) -> Any:
    value = value_of(fields, name)
    if value is None:
        return None
    if not isinstance(value, kinds):
        names = {str: "a string", bool: "true or false", dict: "an object", list: "a list"}
        raise InvalidRequest(f"'{name}' must be {' or '.join(names[kind] for kind in kinds)}", param=name)
    return value


def _number(fields: Fields, name: str, least: float, most: float) -> float | None:
    value = value_of(fields, name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
        raise InvalidRequest(f"'{name}' must be a number from {least} to {most}", param=name)
    return value


def _count(fields: Fields, name: str, least: int, most: int | None) -> int | None:
    value = value_of(fields, name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < least or (most is not None and value > most):
        bounds = f"at least {least}" if most is None else f"from {least} to {most}"
        raise InvalidRequest(f"'{name}' must be an integer, {bounds}", param=name)
    return value


def _objects(fields: Fields, name: str) -> list[Item]:
    values = _typed(fields, name, list) or []
    for number, value in enumerate(values):
        if not isinstance(value, dict):
            raise InvalidRequest(f"'{name}[{number}]' must be an object", param=f"{name}[{number}]")
    return list(values)


def _input_items(fields: Fields) -> list[Item]:
    raw: Raw | None = fields.get("input")
    if raw is None:
        return []
    value = value_of(fields, "input")
    if isinstance(value, str):
        return [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": value}]}]
    if value is not None and not isinstance(value, list):
        raise InvalidRequest("'input' must be a string or a list of items", param="input")
    return _objects(fields, "input")


def _metadata(fields: Fields) -> dict[str, str]:
    metadata = _typed(fields, "metadata", dict) or {}
    if len(metadata) > MAX_METADATA:
        raise InvalidRequest(f"'metadata' has more than {MAX_METADATA} pairs", param="metadata")
    for key, value in metadata.items():
        if not isinstance(value, str):
            raise InvalidRequest(f"'metadata.{key[:64]}' must be a string", param="metadata")
        if len(key) > MAX_METADATA_KEY or len(value) > MAX_METADATA_VALUE:
            raise InvalidRequest(
                f"'metadata' takes keys up to {MAX_METADATA_KEY} and values up to {MAX_METADATA_VALUE} characters",
                param="metadata",
            )
    return dict(metadata)
