"""A request for a model, and what is added to it so that its Turn can be recorded.

Top-level fields stay raw bytes: whatever the gateway does not know passes to the engine, and back, unchanged.
Field names and their meaning: vLLM 0.32, ``entrypoints/openai/{chat_completion,completion}``.
"""

from dataclasses import dataclass
from typing import Any, Literal

import msgspec
from msgspec import Raw

from core.errors import InvalidRequest
from core.variant import ModelName, parse_model_name

Endpoint = Literal["chat.completions", "completions"]
Fields = dict[str, Raw]

MAX_CHOICES = 128
"""Most answers to one prompt, as in the OpenAI API."""
MAX_ANSWERS = 1024
"""Most answers of one request: its prompts times ``n``."""
INJECTED_FIELDS = ("return_token_ids", "logprobs")

_decode_fields = msgspec.json.Decoder(Fields).decode
_encode = msgspec.json.Encoder().encode
_TRUE = Raw(b"true")
_ZERO = Raw(b"0")
_TOKEN_LIMITS = ("max_tokens", "max_completion_tokens")


@dataclass(frozen=True, slots=True)
class CapturePlan:
    """Which fields the gateway adds for itself; each of them is taken out of the answer."""

    token_ids: bool
    logprobs: bool
    keep_usage: bool
    """The client asked for the usage of a stream."""


@dataclass(frozen=True, slots=True)
class InferenceRequest:
    """A parsed request body: raw fields, and the few values that the gateway must understand."""

    endpoint: Endpoint
    body: bytes
    """The JSON object as it came."""
    fields: Fields
    model: ModelName
    stream: bool
    choices: int
    """How many answers the request asks for."""
    plan: CapturePlan


def parse_request(endpoint: Endpoint, body: bytes) -> InferenceRequest:
    """Read a request body; raises InvalidRequest for what no engine could answer."""
    try:
        body.decode()
        fields = _decode_fields(body)
    except UnicodeDecodeError as error:
        raise InvalidRequest("the body is not UTF-8") from error
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidRequest(f"the body is not a JSON object: {error}") from error
    model = value_of(fields, "model")
    if not isinstance(model, str) or not model:
        raise InvalidRequest("'model' must name a model", param="model")
    stream = value_of(fields, "stream")
    if stream is not None and not isinstance(stream, bool):
        raise InvalidRequest("'stream' must be true or false", param="stream")
    echo = endpoint == "completions" and value_of(fields, "echo") is True
    _check_token_limits(fields, least=0 if echo else 1)
    return InferenceRequest(
        endpoint=endpoint,
        body=body,
        fields=fields,
        model=parse_model_name(model),
        stream=bool(stream),
        choices=_count_choices(endpoint, fields),
        plan=plan_capture(endpoint, fields),
    )


def value_of(fields: Fields, name: str) -> Any:
    """The decoded value of one field; None where it is absent. Raises InvalidRequest if it is not JSON."""
    raw = fields.get(name)
    if raw is None:
        return None
    try:
        return msgspec.json.decode(raw)
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidRequest(f"'{name}' cannot be read: {error}", param=name) from error


def plan_capture(endpoint: Endpoint, fields: Fields) -> CapturePlan:
    """What may be added without changing the answer.

    Nothing is added to an echoing completion (with token ids the engine leaves the prompt's text out), to a beam
    search (its tokens are not samples), or beside fields that the engine refuses without ``logprobs``.
    """
    untouchable = value_of(fields, "use_beam_search") is True or (
        endpoint == "completions" and value_of(fields, "echo") is True
    )
    asked_ids = value_of(fields, "return_token_ids") is True
    logprobs = value_of(fields, "logprobs")
    asked_logprobs = logprobs is True if endpoint == "chat.completions" else logprobs is not None
    dependent = bool(value_of(fields, "top_logprobs")) or bool(value_of(fields, "logprob_token_ids"))
    options = value_of(fields, "stream_options")
    return CapturePlan(
        token_ids=not asked_ids and not untouchable,
        logprobs=not asked_logprobs and not untouchable and not dependent,
        keep_usage=isinstance(options, dict) and bool(options.get("include_usage")),
    )


def engine_body(request: InferenceRequest, engine_model: str, *, capture: bool = True) -> bytes:
    """The body for the engine: the client's fields, the engine's model name and, if capturing, what is added."""
    fields = dict(request.fields)
    fields["model"] = Raw(_encode(engine_model))
    if capture and request.plan.token_ids:
        fields["return_token_ids"] = _TRUE
    if capture and request.plan.logprobs:
        # Completions count alternatives beside the sampled token: 0 returns the sampled token's log-prob alone.
        fields["logprobs"] = _TRUE if request.endpoint == "chat.completions" else _ZERO
    return _encode(fields)


def _check_token_limits(fields: Fields, *, least: int) -> None:
    for name in _TOKEN_LIMITS:
        value = value_of(fields, name)
        if value is None:
            continue
        if not isinstance(value, int) or isinstance(value, bool):
            raise InvalidRequest(f"'{name}' must be an integer", param=name)
        if value < least:
            raise InvalidRequest(f"'{name}' must be at least {least}, not {value}", param=name)


def _count_choices(endpoint: Endpoint, fields: Fields) -> int:
    n = value_of(fields, "n")
    if n is None:
        n = 1
    if not isinstance(n, int) or isinstance(n, bool) or not 1 <= n <= MAX_CHOICES:
        raise InvalidRequest(f"'n' must be an integer from 1 to {MAX_CHOICES}", param="n")
    if endpoint == "chat.completions":
        return n
    prompt = value_of(fields, "prompt")
    several = isinstance(prompt, list) and bool(prompt) and isinstance(prompt[0], str | list)
    if not several:
        return n
    if n * len(prompt) > MAX_ANSWERS:
        raise InvalidRequest(
            f"{len(prompt)} prompts with n = {n} are more than {MAX_ANSWERS} answers",
            hint="send several requests",
            param="prompt" if len(prompt) > MAX_ANSWERS else "n",
        )
    return n * len(prompt)
