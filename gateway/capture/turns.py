"""Builds Turns from a CapturedCall: after the answer has left, never before, and from the record alone.

Token ids and log-probs are taken as the engine reports them. A Turn without ids for its prompt or its answer, or
without one log-prob per sampled token, is kept and marked as not exact.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from core.episode import Episode
from core.message import Message, Usage
from core.policy import PolicySpan
from core.turn import SpeculationCounts, Timing, Turn
from core.variant import Variant
from gateway.capture.record import CapturedCall

_UNKNOWN_LOGPROB = -9999.0
"""vLLM writes this where it has no log-prob for a token."""
_MOST_TOOL_CALLS = 4096
"""Of one answer: an engine's ``index`` must not decide how much memory is used."""
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
    num_spec_steps: int = 0
    acceptance_histogram: list[int] = []
    """Steps by the number of draft tokens that they accepted."""


class _Metrics(msgspec.Struct):
    speculative_decoding: _Speculation | None = None


class _PromptDetails(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0
    prompt_tokens_details: _PromptDetails | None = None


class _Answer(msgspec.Struct):
    """A whole answer, or one chunk of a stream."""

    choices: list[_Choice] = msgspec.field(default_factory=list)
    usage: _Usage | None = None
    metrics: _Metrics | None = None
    prompt_token_ids: list[int] | None = None


_decode_answer = msgspec.json.Decoder(_Answer).decode
_decode_request = msgspec.json.Decoder(dict[str, Any]).decode


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


def build_turns(call: CapturedCall) -> list[Turn]:
    """One Turn per choice; only counters where no content may be kept.

    Raises msgspec.DecodeError when the engine's JSON has another shape than OpenAI's.
    """
    if not call.keeps_content:
        return _counters(call)
    answers = [_decode_answer(payload) for payload in call.payloads]
    prompt_ids = next((answer.prompt_token_ids for answer in answers if answer.prompt_token_ids is not None), None)
    usage = next((answer.usage for answer in reversed(answers) if answer.usage is not None), None) or _Usage()
    metrics = next((answer.metrics for answer in reversed(answers) if answer.metrics is not None), None)
    gathered: dict[int, _Gathered] = {}
    for choice in _choices(answers):
        gathered.setdefault(choice.index, _Gathered()).take(choice)
    request = _decode_request(call.request)
    shared = _shared(call, request) | {"speculation": _speculation(metrics)}
    messages = _messages(call.endpoint, request, len(call.turn_ids))
    return [
        _turn(call, choice, gathered[choice], prompt_ids, usage, {**shared, "messages": messages[choice]})
        for choice in sorted(gathered)
        if choice < len(call.turn_ids)
    ]


def build_episode(call: CapturedCall) -> Episode | None:
    """The Episode that the call opens, if it opens one."""
    if not call.opens_episode:
        return None
    return Episode(
        id=call.episode_id,
        tenant_id=call.tenant_id,
        policy=call.policy,
        trainable=call.consent,
        created_at=call.started_at,
    )


def numbers_of(request: dict[str, Any]) -> dict[str, Any]:
    """The fields of a request that can hold no text: temperature, max_tokens, n, …"""
    return {name: value for name, value in request.items() if isinstance(value, int | float)}


def _counters(call: CapturedCall) -> list[Turn]:
    """Turns without content; what the engine counted for all choices stands in the first."""
    shared = _shared(call, numbers_of(_decode_request(call.request)) if call.request else {})
    counted = Usage(
        prompt_tokens=call.prompt_tokens,
        completion_tokens=call.completion_tokens,
        cached_tokens=call.cached_tokens,
    )
    return [
        Turn(
            **{**shared, "policy_spans": _policy_spans(call, choice)},
            id=turn_id,
            choice=choice,
            content_kept=False,
            prompt_ids=(),
            output_ids=(),
            output_logprobs=(),
            exact=False,
            finish_reason=call.finish_reasons.get(choice) or call.broken,
            usage=Usage() if choice else counted,
            idempotency_key=call.idempotency_key if call.broken is None else None,
        )
        for choice, turn_id in enumerate(call.turn_ids)
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
    if not 0 <= index < _MOST_TOOL_CALLS:
        raise msgspec.ValidationError(f"no tool call can have the index {index}")
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


def _speculation(metrics: _Metrics | None) -> SpeculationCounts:
    counts = metrics.speculative_decoding if metrics is not None else None
    if counts is None:
        return SpeculationCounts()
    histogram = counts.acceptance_histogram
    return SpeculationCounts(
        drafted=counts.num_draft_tokens,
        accepted=counts.num_accepted_draft_tokens,
        steps=counts.num_spec_steps,
        # A draft is accepted from its beginning: whoever accepted more tokens accepted this one too.
        accepted_at=tuple(sum(histogram[position:]) for position in range(1, len(histogram))),
    )


def _shared(call: CapturedCall, request: dict[str, Any]) -> dict[str, Any]:
    return {
        "episode_id": call.episode_id,
        "index": call.index,
        "tenant_id": call.tenant_id,
        "policy": call.policy,
        "variant": Variant(call.variant),
        "deployment_id": call.deployment_id,
        "endpoint": call.endpoint,
        "surface": call.surface,
        "stored": call.stored,
        "consented": call.consent,
        "parent_turn_id": call.parent_turn_id,
        "compacted": call.compacted,
        "fallback_from": call.fallback_from,
        "sampling": {name: value for name, value in request.items() if name not in _NOT_SAMPLING},
        "timing": Timing(
            started_at=call.started_at,
            first_token_seconds=call.first_token_seconds,
            total_seconds=call.total_seconds,
        ),
        "request_id": call.request_id,
        # When the answer was whole, not when its record is built: order must not depend on the recorder.
        "created_at": call.started_at + call.total_seconds,
    }


def _policy_spans(call: CapturedCall, choice: int) -> tuple[PolicySpan, ...]:
    """Which version sampled which tokens of a choice; a swap of full weights can fall inside an answer."""
    runs = call.version_spans.get(choice) or [(call.version, 0)]
    return tuple(PolicySpan(version=version, first_token=first) for version, first in runs)


def _messages(endpoint: str, request: dict[str, Any], choices: int) -> list[tuple[Message, ...]]:
    """What was asked, per choice: several prompts of one completion share its choices in order."""
    if endpoint == "chat.completions":
        return [tuple(request.get("messages") or ())] * choices
    prompt = request.get("prompt")
    if isinstance(prompt, str):
        return [({"role": "user", "content": prompt},)] * choices
    if isinstance(prompt, list) and prompt and isinstance(prompt[0], str):
        each = choices // len(prompt)
        return [({"role": "user", "content": text},) for text in prompt for _ in range(each)]
    return [()] * choices


def _turn(
    call: CapturedCall,
    choice: int,
    found: _Gathered,
    prompt_ids: Sequence[int] | None,
    usage: _Usage,
    shared: dict[str, Any],
) -> Turn:
    prompt = found.prompt_ids if found.prompt_ids is not None else prompt_ids
    known = [value for value in found.logprobs if value is not None and value > _UNKNOWN_LOGPROB]
    exact = prompt is not None and found.has_ids and len(known) == len(found.logprobs) == len(found.token_ids)
    whole = call.broken is None or found.finish_reason is not None
    # The engine counts all choices together: its count of sampled tokens is one choice's only where there is one.
    sampled = usage.completion_tokens if len(call.turn_ids) == 1 else 0
    return Turn(
        **{**shared, "policy_spans": _policy_spans(call, choice)},
        id=call.turn_ids[choice],
        choice=choice,
        thread=(call.threads[choice] or None) if choice < len(call.threads) else None,
        response=found.response,
        prompt_ids=tuple(prompt or ()),
        output_ids=tuple(found.token_ids),
        output_logprobs=tuple(known) if exact else (),
        exact=exact,
        finish_reason=found.finish_reason or call.broken,
        usage=Usage(
            prompt_tokens=len(prompt or ()) or usage.prompt_tokens,
            completion_tokens=len(found.token_ids) or sampled,
            cached_tokens=_cached_tokens(usage, len(prompt or ()) or usage.prompt_tokens),
        ),
        # A broken answer leaves the key free, so that the repeated request can be recorded whole.
        idempotency_key=call.idempotency_key if whole else None,
        trainable=call.consent and exact and whole and not call.unproven,
    )


def _cached_tokens(usage: _Usage, prompt_tokens: int) -> int | None:
    """What the engine says was cached of a prompt; of several prompts it says a sum."""
    details = usage.prompt_tokens_details
    if details is None or details.cached_tokens is None:
        return None
    return min(details.cached_tokens, prompt_tokens)
