"""Builds the StoredCompletion of a recorded call: what the client saw, put together again from what was kept."""

from collections.abc import Sequence
from typing import Any

import msgspec
import structlog

from core.errors import InvalidRequest
from core.message import Message
from core.stored_completion import StoredCompletion, check_metadata
from core.turn import Turn
from gateway.capture.record import CapturedCall
from gateway.capture.turns import merge_delta
from gateway.inference.request import CapturePlan, parse_request
from store.unit_of_work import UnitOfWork

log = structlog.get_logger(__name__)

_LONGEST_ID = 256
_TOKEN_IDS = ("token_ids", "prompt_token_ids")
_ECHOED_NUMBERS = ("seed", "temperature", "top_p", "presence_penalty", "frequency_penalty")
_ECHOED_TEXTS = ("tool_choice", "tools", "response_format")
_UNSAID = frozenset({"id", "object", "created", "model", "choices", "usage", "system_fingerprint", "service_tier"})
"""All that is kept of a redacted answer: engines add fields that spell the prompt, and its tokens, once more."""
_Json = dict[str, Any]


async def store_completion(work: UnitOfWork, call: CapturedCall, turns: list[Turn]) -> None:
    """Add the StoredCompletion of a chat completion whose request said ``store: true``; once, however often called.

    To be called in the transaction that writes ``turns``. A call of another surface, a broken one, and one whose
    answer cannot be read store nothing: the Turns are not to fail with them. Nor does a repeated request, whose
    Turns are those of the first: what was said there is another answer's.
    """
    wanted = call.stored and call.surface == call.endpoint == "chat.completions" and call.broken is None
    if not wanted or not turns or (call.idempotency_key is not None and not await _is_first(work, call, turns[0])):
        return
    try:
        completion = build_stored_completion(call, turns)
    except (msgspec.DecodeError, InvalidRequest, KeyError, TypeError, ValueError) as error:
        log.warning("completion_not_stored", turn_ids=call.turn_ids, error=f"{type(error).__name__}: {error}")
        return
    await work.stored_completions.add(completion, turns[0].messages)


def build_stored_completion(call: CapturedCall, turns: Sequence[Turn]) -> StoredCompletion:
    """The StoredCompletion of a call; what was said comes from ``turns`` where personal data was taken out.

    Raises msgspec.DecodeError, InvalidRequest, KeyError, TypeError, ValueError for what is not a chat completion.
    """
    plan = parse_request("chat.completions", call.request).plan
    request: _Json = msgspec.json.decode(call.request)
    payloads: list[_Json] = [msgspec.json.decode(payload, type=dict[str, Any]) for payload in call.payloads]
    completion = _from_chunks(payloads, call.public_model) if request.get("stream") else payloads[-1]
    choices = [_shown_choice(choice, plan) for choice in completion["choices"]]
    if call.redact:
        responses = {turn.choice: turn.response for turn in turns}
        choices = [_redacted_choice(choice, responses) for choice in choices]
    echoed = _ECHOED_NUMBERS if call.redact else _ECHOED_NUMBERS + _ECHOED_TEXTS
    shown = {name: value for name, value in completion.items() if name != "metadata"}
    if plan.token_ids:
        shown = _without_ids(shown)
    if call.redact:
        shown = {name: value for name, value in shown.items() if name in _UNSAID}
    return StoredCompletion(
        tenant_id=call.tenant_id,
        id=_checked_id(completion["id"]),
        model=call.public_model,
        asked_model=request["model"],
        episode_id=call.episode_id,
        turn_ids=tuple(call.turn_ids),
        consent=call.consent,
        completion={
            **shown,
            "model": call.public_model,
            "choices": choices,
            "request_id": call.request_id,
            **{name: request.get(name) for name in echoed},
        },
        metadata=_kept_metadata(request, call),
        created_at=call.started_at,
    )


async def _is_first(work: UnitOfWork, call: CapturedCall, turn: Turn) -> bool:
    """Whether the Turn in the store is this call's, and not that of an earlier request with its idempotency key."""
    if not await work.turns.existing([turn.id]):
        return False
    kept = await work.turns.get(turn.id)
    return (kept.request_id, kept.timing.started_at) == (call.request_id, call.started_at)


def _from_chunks(chunks: Sequence[_Json], model: str) -> _Json:
    """A ``chat.completion`` from the ``chat.completion.chunk`` objects of a stream."""
    whole: _Json = {
        "id": chunks[0]["id"],
        "object": "chat.completion",
        "created": chunks[0]["created"],
        "model": model,
    }
    choices: dict[int, _Json] = {}
    for chunk in chunks:
        for name in ("usage", "system_fingerprint", "service_tier"):
            if chunk.get(name) is not None:
                whole[name] = chunk[name]
        for part in chunk["choices"]:
            index = part["index"]
            choice = choices.setdefault(index, {"index": index, "message": {"role": "assistant", "content": None}})
            _merge_choice(choice, part)
    return whole | {"choices": [choices[index] for index in sorted(choices)]}


def _merge_choice(choice: _Json, part: _Json) -> None:
    for name, value in part.items():
        if name == "delta":
            merge_delta(choice["message"], value)
        elif name == "logprobs" and isinstance(value, dict):
            known = choice.get("logprobs") or {}
            choice["logprobs"] = {key: (known.get(key) or []) + (value[key] or []) for key in value}
        elif name == "token_ids" and isinstance(value, list):
            choice["token_ids"] = choice.get("token_ids", []) + value
        elif name not in choice or value is not None:
            choice[name] = value


def _shown_choice(choice: _Json, plan: CapturePlan) -> _Json:
    """A choice without what the gateway asked for by itself."""
    shown = {"logprobs": None, "finish_reason": None} | (_without_ids(choice) if plan.token_ids else choice)
    return shown | {"logprobs": None} if plan.logprobs else shown


def _without_ids(value: _Json) -> _Json:
    """Null in place of token ids, as the client saw it."""
    return value | {name: None for name in _TOKEN_IDS if name in value}


def _redacted_choice(choice: _Json, responses: dict[int, Message]) -> _Json:
    """Log-probs spell the answer out token by token: they go with the text that they belong to."""
    index = choice["index"]
    return {
        "index": index,
        "message": responses[index],
        "logprobs": None,
        "finish_reason": choice["finish_reason"],
    }


def _checked_id(value: object) -> str:
    if (
        not isinstance(value, str)
        or not 0 < len(value) <= _LONGEST_ID
        or not (value.isascii() and value.isprintable())
    ):
        raise ValueError("the engine's id of the completion cannot be stored")
    return value


def _kept_metadata(request: _Json, call: CapturedCall) -> dict[str, str]:
    try:
        return check_metadata(request.get("metadata"))
    except InvalidRequest as error:
        # The answer has left: a completion without its labels is more than none at all.
        log.warning("completion_metadata_dropped", request_id=call.request_id, error=error.message)
        return {}
