"""Builds Turns from what an engine sent: after the answer has left, never before.

Token ids and log-probs are taken as the engine reports them. A Turn without ids for its prompt or its answer, or
without one log-prob per sampled token, is kept and marked as not exact.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from core.message import Message, Usage
from core.policy import PolicySpan
from core.turn import SpeculationCounts, Timing, Turn
from gateway.inference.request import Endpoint, Fields
from serving.pool import Route

CANCELLED = "cancelled"
ENGINE_FAILED = "engine_failed"
_UNKNOWN_LOGPROB = -9999.0
"""vLLM writes this where it has no log-prob for a token."""
_NOT_SAMPLING = frozenset({"model", "messages", "prompt", "stream", "stream_options"})


class _Entry(msgspec.Struct):
    logprob: float = _UNKNOWN_LOGPROB


class _Logprobs(msgspec.Struct):
    """Chat gives one entry per token under ``content``, completions a list under ``token_logprobs``."""

    content: list[_Entry] | None = None
    token_logprobs: list[float | None] | None = None


class _Choice(msgspec.Struct):
    index: int = 0
    message: dict[str, Any] | None = None
    delta: dict[str, Any] | None = None
    text: str | None = None
    logprobs: _Logprobs | None = None
    finish_reason: str | None = None
    token_ids: list[int] | None = None
    prompt_token_ids: list[int] | None = None


class _Speculation(msgspec.Struct):
    num_draft_tokens: int = 0
    num_accepted_draft_tokens: int = 0


class _Metrics(msgspec.Struct):
    speculative_decoding: _Speculation | None = None


class _PromptDetails(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens_details: _PromptDetails | None = None


class _Answer(msgspec.Struct):
    """A whole answer, or one chunk of a stream."""

    choices: list[_Choice] = msgspec.field(default_factory=list)
    usage: _Usage | None = None
    metrics: _Metrics | None = None
    prompt_token_ids: list[int] | None = None


_decode_answer = msgspec.json.Decoder(_Answer).decode


@dataclass(slots=True)
class Capture:
    """One answered request, with everything that its Turns will be made of."""

    endpoint: Endpoint
    fields: Fields
    route: Route
    episode_id: str
    index: int
    tenant_id: str
    turn_ids: tuple[str, ...]
    request_id: str
    idempotency_key: str | None
    consent: bool
    started_at: float
    payloads: list[bytes] = field(default_factory=list)
    """The engine's JSON: one body, or the data of every event of a stream."""
    broken: str | None = None
    """Why a stream did not reach its end: ``cancelled`` or ``engine_failed``."""
    first_token_seconds: float | None = None
    total_seconds: float = 0.0


@dataclass(slots=True)
class _Gathered:
    """One choice, put together from a body or from all chunks of a stream."""

    response: Message = field(default_factory=lambda: {"role": "assistant"})
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float | None] = field(default_factory=list)
    has_ids: bool = False
    prompt_ids: list[int] | None = None
    finish_reason: str | None = None

    def take(self, choice: _Choice) -> None:
        if choice.token_ids is not None:
            self.has_ids = True
            self.token_ids += choice.token_ids
        self.logprobs += _values(choice.logprobs)
        if choice.prompt_token_ids is not None:
            self.prompt_ids = choice.prompt_token_ids
        if choice.finish_reason is not None:
            self.finish_reason = choice.finish_reason
        if choice.message is not None:
            self.response = choice.message
        elif choice.delta is not None:
            merge_delta(self.response, choice.delta)
        elif choice.text is not None:
            merge_delta(self.response, {"content": choice.text})


def build_turns(capture: Capture) -> list[Turn]:
    """One Turn per choice. Raises msgspec.DecodeError when the engine's JSON has another shape than OpenAI's."""
    answers = [_decode_answer(payload) for payload in capture.payloads]
    prompt_ids = next((answer.prompt_token_ids for answer in answers if answer.prompt_token_ids is not None), None)
    usage = next((answer.usage for answer in reversed(answers) if answer.usage is not None), None)
    metrics = next((answer.metrics for answer in reversed(answers) if answer.metrics is not None), None)
    gathered: dict[int, _Gathered] = {}
    for choice in _choices(answers):
        gathered.setdefault(choice.index, _Gathered()).take(choice)
    shared = _shared(capture, _cached_tokens(usage), _speculation(metrics))
    messages = _messages(capture, len(capture.turn_ids))
    return [
        _turn(capture, choice, gathered[choice], prompt_ids, {**shared, "messages": messages[choice]})
        for choice in sorted(gathered)
        if choice < len(capture.turn_ids)
    ]


def merge_delta(message: Message, delta: Message) -> None:
    """Add one streamed delta to a message in place: text grows, tool calls are matched by their index."""
    for name, value in delta.items():
        if value is None:
            continue
        present = message.get(name)
        if name == "tool_calls" and isinstance(value, list):
            calls = message.setdefault("tool_calls", [])
            for part in value:
                _merge_tool_call(calls, part)
        elif isinstance(value, str) and isinstance(present, str) and name not in ("role", "id", "type", "name"):
            message[name] = present + value
        elif isinstance(value, dict) and isinstance(present, dict):
            merge_delta(present, value)
        elif isinstance(value, list) and isinstance(present, list):
            present.extend(value)
        else:
            message[name] = value


def _merge_tool_call(calls: list[Message], part: Message) -> None:
    index = part.get("index", len(calls))
    while len(calls) <= index:
        calls.append({})
    merge_delta(calls[index], {name: value for name, value in part.items() if name != "index"})


def _choices(answers: Iterable[_Answer]) -> Iterator[_Choice]:
    for answer in answers:
        yield from answer.choices


def _values(logprobs: _Logprobs | None) -> list[float | None]:
    if logprobs is None:
        return []
    if logprobs.content is not None:
        return [entry.logprob for entry in logprobs.content]
    return logprobs.token_logprobs or []


def _cached_tokens(usage: _Usage | None) -> int:
    details = usage.prompt_tokens_details if usage is not None else None
    return (details.cached_tokens or 0) if details is not None else 0


def _speculation(metrics: _Metrics | None) -> SpeculationCounts:
    counts = metrics.speculative_decoding if metrics is not None else None
    if counts is None:
        return SpeculationCounts()
    return SpeculationCounts(drafted=counts.num_draft_tokens, accepted=counts.num_accepted_draft_tokens)


def _shared(capture: Capture, cached_tokens: int, speculation: SpeculationCounts) -> dict[str, Any]:
    fields = capture.fields
    return {
        "episode_id": capture.episode_id,
        "index": capture.index,
        "tenant_id": capture.tenant_id,
        "policy": capture.route.policy,
        "policy_spans": (PolicySpan(version=capture.route.version),),
        "variant": capture.route.variant,
        "deployment_id": capture.route.deployment.id,
        "endpoint": capture.endpoint,
        "sampling": {name: msgspec.json.decode(fields[name]) for name in fields if name not in _NOT_SAMPLING},
        "speculation": speculation,
        "timing": Timing(
            started_at=capture.started_at,
            first_token_seconds=capture.first_token_seconds,
            total_seconds=capture.total_seconds,
        ),
        "request_id": capture.request_id,
        # When the answer was whole, not when its record is built: order must not depend on the recorder.
        "created_at": capture.started_at + capture.total_seconds,
        "cached_tokens": cached_tokens,
    }


def _messages(capture: Capture, choices: int) -> list[tuple[Message, ...]]:
    """What was asked, per choice: several prompts of one completion share its choices in order."""
    if capture.endpoint == "chat.completions":
        raw = capture.fields.get("messages")
        return [tuple(msgspec.json.decode(raw, type=list[dict[str, Any]]) if raw is not None else ())] * choices
    raw = capture.fields.get("prompt")
    prompt = msgspec.json.decode(raw) if raw is not None else None
    if isinstance(prompt, str):
        return [({"role": "user", "content": prompt},)] * choices
    if isinstance(prompt, list) and prompt and isinstance(prompt[0], str):
        each = choices // len(prompt)
        return [({"role": "user", "content": text},) for text in prompt for _ in range(each)]
    return [()] * choices


def _turn(
    capture: Capture, choice: int, found: _Gathered, prompt_ids: Sequence[int] | None, shared: dict[str, Any]
) -> Turn:
    cached_tokens = shared.pop("cached_tokens")
    prompt = found.prompt_ids if found.prompt_ids is not None else prompt_ids
    known = [value for value in found.logprobs if value is not None and value > _UNKNOWN_LOGPROB]
    exact = prompt is not None and found.has_ids and len(known) == len(found.logprobs) == len(found.token_ids)
    whole = capture.broken is None or found.finish_reason is not None
    return Turn(
        **shared,
        id=capture.turn_ids[choice],
        choice=choice,
        response=found.response,
        prompt_ids=tuple(prompt or ()),
        output_ids=tuple(found.token_ids),
        output_logprobs=tuple(known) if exact else (),
        exact=exact,
        finish_reason=found.finish_reason or capture.broken,
        usage=Usage(
            prompt_tokens=len(prompt or ()), completion_tokens=len(found.token_ids), cached_tokens=cached_tokens
        ),
        # A broken answer leaves the key free, so that the repeated request can be recorded whole.
        idempotency_key=capture.idempotency_key if whole else None,
        trainable=capture.consent and exact and whole,
    )
