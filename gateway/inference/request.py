"""A request for a model, and what is added to it so that its Turn can be recorded.

Top-level fields stay raw bytes: whatever the gateway does not know passes to the engine, and back, unchanged.
Field names and their meaning: vLLM 0.32, ``entrypoints/openai/{chat_completion,completion}``.
"""

from functools import lru_cache
from typing import Any, Literal

import msgspec
from msgspec import Raw

from core.errors import InvalidRequest
from core.variant import ModelName, parse_model_name
from serving.variant_choice import Latency

Endpoint = Literal["chat.completions", "completions"]
Fields = dict[str, Raw]

MAX_CHOICES = 128
"""Most answers to one prompt, as in the OpenAI API."""
MAX_ANSWERS = 1024
"""Most answers of one request: its prompts times ``n``."""
INJECTED_FIELDS = ("return_token_ids", "logprobs", "stream_options")
EPISODE_METADATA = "hone_episode_id"
"""Key in ``metadata`` that names the Episode, for clients that cannot send headers."""

_BYTES_PER_TOKEN = 4
"""Of English text, roughly: only for estimating what a request will use."""

_encode = msgspec.json.Encoder().encode
_TRUE = Raw(b"true")
_ZERO = Raw(b"0")
_ONLY_USAGE = Raw(b'{"include_usage":true}')
_parse_model_name = lru_cache(maxsize=1024)(parse_model_name)


class CapturePlan(msgspec.Struct, frozen=True):
    """Which fields the gateway adds for itself; each of them is taken out of the answer."""

    token_ids: bool
    logprobs: bool
    usage: bool
    """A stream's usage is asked for, and not shown to the client."""

    @property
    def content(self) -> bool:
        """Whether something is in the answer's choices that the client did not ask for."""
        return self.token_ids or self.logprobs

    def without_content(self) -> "CapturePlan":
        """The plan for a call of which only counters are kept."""
        return CapturePlan(token_ids=False, logprobs=False, usage=self.usage) if self.content else self


class InferenceRequest(msgspec.Struct, frozen=True):
    """A parsed request body: raw fields, and the few values that the gateway must understand."""

    endpoint: Endpoint
    body: bytes
    """The JSON object as it came."""
    fields: Fields
    model_text: str
    """The ``model`` field as it came."""
    model: ModelName
    stream: bool
    choices: int
    """How many answers the request asks for."""
    prompt_tokens_estimate: int
    """From the length of the body."""
    most_tokens: int
    """Upper estimate of what prompt and answers will use; without a token limit only the prompt's part."""
    store: bool
    metadata: dict[str, Any]
    """As sent; empty where there is none."""
    plan: CapturePlan
    answer_tokens: int = 0
    """The limit of one answer; 0: the request has none."""
    latency: Latency | None = None
    """What the request's header asks for; None: as configured."""


class _Head(msgspec.Struct):
    """The fields that are looked at; of any type, because each one's error names it."""

    model: Any = None
    stream: Any = None
    n: Any = None
    max_tokens: Any = None
    max_completion_tokens: Any = None
    logprobs: Any = None
    top_logprobs: Any = None
    logprob_token_ids: Any = None
    return_token_ids: Any = None
    use_beam_search: Any = None
    echo: Any = None
    stream_options: Any = None
    store: Any = None
    metadata: Any = None


_decode_fields = msgspec.json.Decoder(Fields).decode
_decode_head = msgspec.json.Decoder(_Head).decode


def parse_request(endpoint: Endpoint, body: bytes, latency: Latency | None = None) -> InferenceRequest:
    """Read a request body; raises InvalidRequest for what no engine could answer."""
    try:
        body.decode()
        fields = _decode_fields(body)
        head = _decode_head(body)
    except UnicodeDecodeError as error:
        raise InvalidRequest("the body is not UTF-8") from error
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidRequest(f"the body is not a JSON object: {error}") from error
    if not isinstance(head.model, str) or not head.model:
        raise InvalidRequest("'model' must name a model", param="model")
    if head.stream is not None and not isinstance(head.stream, bool):
        raise InvalidRequest("'stream' must be true or false", param="stream")
    # Only an echoing completion may ask for no tokens: it scores its prompt.
    limit = _token_limit(head, least=0 if endpoint == "completions" and head.echo is True else 1)
    stream = bool(head.stream)
    choices = _count_choices(endpoint, fields, head.n)
    return InferenceRequest(
        endpoint=endpoint,
        body=body,
        fields=fields,
        model_text=head.model,
        model=_parse_model_name(head.model),
        stream=stream,
        choices=choices,
        prompt_tokens_estimate=len(body) // _BYTES_PER_TOKEN,
        most_tokens=len(body) // _BYTES_PER_TOKEN + limit * choices,
        store=head.store is True,
        metadata=head.metadata if isinstance(head.metadata, dict) else {},
        plan=_plan_capture(endpoint, head, stream=stream),
        answer_tokens=limit,
        latency=latency,
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


def engine_body(request: InferenceRequest, engine_model: Raw, plan: CapturePlan | None = None) -> bytes:
    """The body for the engine: the client's fields, the engine's model name (JSON) and what ``plan`` adds."""
    fields = request.fields.copy()
    fields["model"] = engine_model
    if plan is None:
        return _encode(fields)
    if plan.token_ids:
        fields["return_token_ids"] = _TRUE
    if plan.logprobs:
        # Completions count alternatives beside the sampled token: 0 returns the sampled token's log-prob alone.
        fields["logprobs"] = _TRUE if request.endpoint == "chat.completions" else _ZERO
    if plan.usage:
        fields["stream_options"] = _with_usage(fields.get("stream_options"))
    return _encode(fields)


def _plan_capture(endpoint: Endpoint, head: _Head, *, stream: bool) -> CapturePlan:
    """What may be added without changing the answer.

    Nothing is added to an echoing completion (with token ids the engine leaves the prompt's text out), to a beam
    search (its tokens are not samples), or beside fields that the engine refuses without ``logprobs``.
    """
    chat = endpoint == "chat.completions"
    untouchable = head.use_beam_search is True or (not chat and head.echo is True)
    asked_logprobs = head.logprobs is True if chat else head.logprobs is not None
    dependent = bool(head.top_logprobs) or bool(head.logprob_token_ids)
    options = head.stream_options
    odd_options = options is not None and not isinstance(options, dict)
    asked_usage = isinstance(options, dict) and bool(options.get("include_usage"))
    return CapturePlan(
        token_ids=head.return_token_ids is not True and not untouchable,
        logprobs=not asked_logprobs and not untouchable and not dependent,
        usage=stream and not asked_usage and not odd_options,
    )


def _with_usage(raw: Raw | None) -> Raw:
    """``stream_options`` with the usage at the end, and nowhere else unless the client asked for it."""
    options = None if raw is None else msgspec.json.decode(raw)
    if not options:
        return _ONLY_USAGE
    return Raw(_encode(options | {"include_usage": True, "continuous_usage_stats": False}))


def _token_limit(head: _Head, *, least: int) -> int:
    limit = 0
    for name, value in (("max_tokens", head.max_tokens), ("max_completion_tokens", head.max_completion_tokens)):
        if value is None:
            continue
        if not isinstance(value, int) or isinstance(value, bool):
            raise InvalidRequest(f"'{name}' must be an integer", param=name)
        if value < least:
            raise InvalidRequest(f"'{name}' must be at least {least}, not {value}", param=name)
        limit = value
    return limit


def _count_choices(endpoint: Endpoint, fields: Fields, n: object) -> int:
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
