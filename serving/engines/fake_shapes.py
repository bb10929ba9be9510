"""The JSON that vLLM 0.32 answers with, built from the toy model's answers.

Read from vLLM 0.32.0, ``entrypoints/openai/{chat_completion,completion}/serving.py`` and ``protocol.py``.
Chunks of a stream leave out what vLLM leaves unset; whole answers carry every field, with null.
"""

import secrets
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from serving.engines.fake_model import Generation, token_text

_FINGERPRINT = "vllm-0.32.0-fake"


@dataclass(frozen=True)
class Call:
    """What the shapes need to know of one request."""

    model: str
    chat: bool
    prompt_ids: list[int]
    n: int
    logprobs: int | None
    """Number of alternatives beside the sampled token; None: no log-probs asked for."""
    return_token_ids: bool
    include_usage: bool
    prompt_logprobs: list[dict[str, Any] | None] | None = None
    number: str = field(default_factory=lambda: secrets.token_hex(16))
    created: int = field(default_factory=lambda: int(time.time()))

    @property
    def id(self) -> str:
        """The answer's id, as vLLM forms it."""
        return f"{'chatcmpl' if self.chat else 'cmpl'}-{self.number}"


def error_body(message: str, *, type_: str, code: int, param: str | None = None) -> dict[str, Any]:
    """vLLM's error answer."""
    return {"error": {"message": message, "type": type_, "param": param, "code": code}}


def usage(call: Call, generations: Sequence[Generation]) -> dict[str, Any]:
    """Token counts over all choices."""
    completion = sum(len(generation.token_ids) for generation in generations)
    return {
        "prompt_tokens": len(call.prompt_ids),
        "total_tokens": len(call.prompt_ids) + completion,
        "completion_tokens": completion,
    }


def whole(call: Call, generations: Sequence[Generation]) -> dict[str, Any]:
    """The answer to a request without ``stream``."""
    body: dict[str, Any] = {
        "id": call.id,
        "object": "chat.completion" if call.chat else "text_completion",
        "created": call.created,
        "model": call.model,
        "choices": [_choice(call, index, generation) for index, generation in enumerate(generations)],
        "service_tier": None,
        "system_fingerprint": _FINGERPRINT,
        "usage": {
            **usage(call, generations),
            "prompt_tokens_details": None,
            "completion_tokens_details": None,
        },
        "kv_transfer_params": None,
        "ec_transfer_params": None,
        "metrics": None,
    }
    if call.chat:
        body["prompt_logprobs"] = call.prompt_logprobs
        body["prompt_token_ids"] = call.prompt_ids if call.return_token_ids else None
        body["prompt_text"] = None
    return body


def stream(call: Call, generations: Sequence[Generation]) -> Iterator[dict[str, Any]]:
    """The chunks of a stream, without ``[DONE]``: choices take turns token by token.

    ``generations`` may be replaced, item by item, between two chunks.
    """
    if call.chat:
        yield from (_role_chunk(call, index) for index in range(call.n))
    step = 0
    while step < max(len(generation.token_ids) for generation in generations):
        for index in range(len(generations)):
            if step < len(generations[index].token_ids):
                yield _chunk(call, [_delta(call, index, generations[index], step)])
        step += 1
    if call.include_usage:
        yield {
            **_chunk(call, []),
            "usage": usage(call, generations),
            "system_fingerprint": _FINGERPRINT,
        }


def _chunk(call: Call, choices: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "id": call.id,
        "object": "chat.completion.chunk" if call.chat else "text_completion",
        "created": call.created,
        "model": call.model,
        "choices": choices,
    }


def _role_chunk(call: Call, index: int) -> dict[str, Any]:
    choice = {
        "index": index,
        "delta": {"role": "assistant", "content": ""},
        "logprobs": None,
        "finish_reason": None,
    }
    return {
        **_chunk(call, [choice]),
        "prompt_token_ids": call.prompt_ids if call.return_token_ids else None,
        "prompt_text": None,
    }


def _delta(call: Call, index: int, generation: Generation, step: int) -> dict[str, Any]:
    last = step == len(generation.token_ids) - 1
    choice: dict[str, Any] = {
        "index": index,
        "logprobs": _logprobs(call, generation, step, step + 1),
        "finish_reason": generation.finish_reason if last else None,
        "token_ids": [generation.token_ids[step]] if call.return_token_ids else None,
    }
    if call.chat:
        deltas = generation.deltas
        choice["delta"] = {"content": generation.pieces[step]} if deltas is None else dict(deltas[step])
        if last:
            choice["stop_reason"] = generation.stop_reason
        return choice
    choice["text"] = generation.pieces[step]
    choice["stop_reason"] = generation.stop_reason if last else None
    choice["prompt_token_ids"] = call.prompt_ids if call.return_token_ids and step == 0 else None
    return choice


def _choice(call: Call, index: int, generation: Generation) -> dict[str, Any]:
    choice: dict[str, Any] = {
        "index": index,
        "logprobs": _logprobs(call, generation, 0, len(generation.token_ids)),
        "finish_reason": generation.finish_reason,
        "stop_reason": generation.stop_reason,
        "token_ids": generation.token_ids if call.return_token_ids else None,
        "routed_experts": None,
    }
    if call.chat:
        choice["message"] = {
            "role": "assistant",
            "content": generation.text,
            "refusal": None,
            "annotations": None,
            "audio": None,
            "function_call": None,
            "reasoning": None,
            **(generation.message or {}),
        }
        return choice
    choice["text"] = generation.text
    choice["prompt_logprobs"] = call.prompt_logprobs
    choice["prompt_token_ids"] = call.prompt_ids if call.return_token_ids else None
    return choice


def _logprobs(call: Call, generation: Generation, start: int, end: int) -> dict[str, Any] | None:
    if call.logprobs is None:
        return None
    tokens = [token_text(token) for token in generation.token_ids[start:end]]
    values = generation.logprobs[start:end]
    if call.chat:
        content = []
        for token, value in zip(tokens, values, strict=True):
            entry = {"token": token, "logprob": value, "bytes": list(token.encode())}
            content.append({**entry, "top_logprobs": [entry] if call.logprobs else []})
        return {"content": content}
    offsets = [sum(len(piece) for piece in generation.pieces[:step]) for step in range(start, end)]
    return {
        "text_offset": offsets,
        "token_logprobs": values,
        "tokens": tokens,
        "top_logprobs": [{token: value} for token, value in zip(tokens, values, strict=True)],
    }


def prompt_logprob_entries(token_ids: Sequence[int], values: Sequence[float | None]) -> list[dict[str, Any] | None]:
    """The ``prompt_logprobs`` field: null first, then token id → log-prob, rank and text."""
    entries: list[dict[str, Any] | None] = []
    for token, value in zip(token_ids, values, strict=True):
        if value is None:
            entries.append(None)
        else:
            entries.append({str(token): {"logprob": value, "rank": 1, "decoded_token": token_text(token)}})
    return entries
