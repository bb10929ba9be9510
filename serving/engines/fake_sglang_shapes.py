"""The JSON and the metrics that SGLang 0.5.23 answers with, built from the toy model's answers.

Read from ``srt/entrypoints/openai/{protocol,serving_chat,serving_completions}.py`` and
``srt/managers/tokenizer_manager.py``.
"""

import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from serving.engines.fake_model import IM_END, Generation, prompt_logprobs, token_text


@dataclass(frozen=True)
class Asked:
    """What the shapes need to know of one request."""

    model: str
    prompt_ids: list[int]
    logprobs: bool
    prompt_from: int = -1
    """First prompt position with log-probs; -1: none."""
    n: int = 1
    token_ids: bool = False
    sglext_input: bool = False
    sglext_output: bool = False
    include_usage: bool = False
    number: str = field(default_factory=lambda: secrets.token_hex(16))
    created: int = field(default_factory=lambda: int(time.time()))


def model_cards(base: str, adapters: Mapping[str, str], max_model_len: int) -> dict[str, Any]:
    """The answer of ``/v1/models``: adapter name → its folder."""
    card = {"object": "model", "created": int(time.time()), "owned_by": "sglang"}
    cards = [{"id": base, **card, "root": base, "parent": None, "max_model_len": max_model_len}]
    cards += [
        {"id": name, **card, "root": folder, "parent": base, "max_model_len": None}
        for name, folder in adapters.items()
    ]
    return {"object": "list", "data": cards}


def metrics_text(base: str, *, running: int, paused: bool, output: int, prompt: int, requests: int) -> str:
    """The text format of Prometheus; counters of tokens grow when a request ends."""
    labels = f'{{model_name="{base}",engine_type="unified",tp_rank="0",pp_rank="0"}}'
    samples = [
        ("num_running_reqs", "gauge", 0 if paused else running),
        ("num_queue_reqs", "gauge", running if paused else 0),
        ("token_usage", "gauge", 0.0),
        ("prompt_tokens_total", "counter", prompt),
        ("generation_tokens_total", "counter", output),
        ("num_requests_total", "counter", requests),
    ]
    lines = [
        line
        for name, kind, value in samples
        for line in (f"# TYPE sglang:{name} {kind}", f"sglang:{name}{labels} {float(value)}")
    ]
    return "\n".join(lines) + "\n"


def generated(asked: Asked, one: Generation, identity: str, label: str, *, upto: int | None = None) -> dict[str, Any]:
    """The answer of ``/generate``, or the chunk after ``upto`` tokens; a chunk holds all tokens so far."""
    count = len(one.token_ids) if upto is None else upto
    ended = count == len(one.token_ids)
    meta: dict[str, Any] = {
        "id": asked.number,
        "finish_reason": _finish(one) if ended else None,
        "prompt_tokens": len(asked.prompt_ids),
        "weight_version": label,
        "num_retractions": 0,
        "completion_tokens": count,
        "cached_tokens": 0,
    }
    if asked.logprobs:
        meta["output_token_logprobs"] = _entries(one, count)
        meta["output_token_logprobs_length"] = count
        if asked.prompt_from >= 0:
            values = prompt_logprobs(identity, asked.prompt_ids)
            entries = [[value, token, None] for value, token in zip(values, asked.prompt_ids, strict=True)]
            meta["input_token_logprobs"] = entries[asked.prompt_from :]
    return {"text": "".join(one.pieces[:count]), "output_ids": one.token_ids[:count], "meta_info": meta}


def chat_whole(asked: Asked, answers: Sequence[Generation]) -> dict[str, Any]:
    """A chat answer; ids are in the choice, under other names than those of a completion."""
    choices = []
    for index, one in enumerate(answers):
        message = {"role": "assistant", "content": one.text, "reasoning_content": None}
        choice = {
            "index": index,
            "message": message,
            "logprobs": _chat_logprobs(one, 0, len(one.token_ids)) if asked.logprobs else None,
            "finish_reason": one.finish_reason,
            "matched_stop": _matched(one),
        }
        if asked.token_ids:
            choice |= {"prompt_token_ids": asked.prompt_ids, "response_token_ids": one.token_ids}
        choices.append(choice)
    return {**_head(asked, "chat.completion", choices), "usage": _usage(asked, answers), **_sglext(asked, answers)}


def completion_whole(asked: Asked, answers: Sequence[Generation]) -> dict[str, Any]:
    """A completion."""
    choices = []
    for index, one in enumerate(answers):
        choice = {
            "index": index,
            "text": one.text,
            "logprobs": _text_logprobs(one, 0, len(one.token_ids)) if asked.logprobs else None,
            "finish_reason": one.finish_reason,
            "matched_stop": _matched(one),
        }
        if asked.token_ids:
            choice |= {"token_ids": one.token_ids, "prompt_token_ids": asked.prompt_ids}
        choices.append(choice)
    return {**_head(asked, "text_completion", choices), "usage": _usage(asked, answers), "metadata": None}


def chat_chunks(asked: Asked, answers: list[Generation]) -> Iterator[list[dict[str, Any]]]:
    """The chunks of each token, then those of the end: finish reasons, ids, usage. ``answers`` may be replaced."""
    step = 0
    while step < max(len(one.token_ids) for one in answers):
        pieces = []
        for index in range(asked.n):
            one = answers[index]
            if step == 0:
                pieces.append(_chat_chunk(asked, index, {"role": "assistant", "content": ""}))
            if step < len(one.token_ids):
                logprobs = _chat_logprobs(one, step, step + 1) if asked.logprobs else None
                pieces.append(_chat_chunk(asked, index, {"content": one.pieces[step]}, logprobs=logprobs))
        yield pieces
        step += 1
    ends = [
        _chat_chunk(asked, index, {}, finish=one.finish_reason, matched=_matched(one))
        for index, one in enumerate(answers)
    ]
    if sglext := _sglext(asked, answers):
        ends.append({**_head(asked, "chat.completion.chunk", []), **sglext})
    if asked.include_usage:
        ends.append({**_head(asked, "chat.completion.chunk", []), "usage": _usage(asked, answers)})
    yield ends


def completion_chunks(asked: Asked, answers: list[Generation]) -> Iterator[list[dict[str, Any]]]:
    """The chunks of each token, then that of the usage. ``answers`` may be replaced between two."""
    step = 0
    while step < max(len(one.token_ids) for one in answers):
        pieces = []
        for index in range(asked.n):
            one = answers[index]
            if step >= len(one.token_ids):
                continue
            last = step == len(one.token_ids) - 1
            choice: dict[str, Any] = {
                "index": index,
                "text": one.pieces[step],
                "logprobs": _text_logprobs(one, step, step + 1) if asked.logprobs else None,
                "finish_reason": one.finish_reason if last else None,
                "matched_stop": _matched(one) if last else None,
            }
            if asked.token_ids:
                choice["token_ids"] = [one.token_ids[step]]
                if step == 0:
                    choice["prompt_token_ids"] = asked.prompt_ids
            pieces.append(_head(asked, "text_completion", [choice]))
        yield pieces
        step += 1
    yield [{**_head(asked, "text_completion", []), "usage": _usage(asked, answers)}] if asked.include_usage else []


def _chat_chunk(
    asked: Asked,
    index: int,
    delta: dict[str, Any],
    *,
    logprobs: dict[str, Any] | None = None,
    finish: str | None = None,
    matched: int | str | None = None,
) -> dict[str, Any]:
    choice = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish, "matched_stop": matched}
    return _head(asked, "chat.completion.chunk", [choice])


def _head(asked: Asked, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
    return {"id": asked.number, "object": kind, "created": asked.created, "model": asked.model, "choices": choices}


def _sglext(asked: Asked, answers: Sequence[Generation]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if asked.sglext_input:
        found["input_ids"] = asked.prompt_ids
    if asked.sglext_output:
        found["output_ids"] = [one.token_ids for one in answers]
    return {"sglext": found} if found else {}


def _usage(asked: Asked, answers: Sequence[Generation]) -> dict[str, Any]:
    completion = sum(len(one.token_ids) for one in answers)
    prompt = len(asked.prompt_ids)
    return {
        "prompt_tokens": prompt,
        "total_tokens": prompt + completion,
        "completion_tokens": completion,
        "prompt_tokens_details": None,
        "reasoning_tokens": 0,
    }


def _finish(one: Generation) -> dict[str, Any]:
    if one.finish_reason == "length":
        return {"type": "length", "length": len(one.token_ids)}
    return {"type": "stop", "matched": _matched(one)}


def _matched(one: Generation) -> int | str | None:
    if one.finish_reason != "stop":
        return None
    return one.stop_reason if one.stop_reason is not None else IM_END


def _entries(one: Generation, count: int) -> list[list[Any]]:
    return [[value, token, None] for value, token in zip(one.logprobs[:count], one.token_ids[:count], strict=True)]


def _chat_logprobs(one: Generation, start: int, end: int) -> dict[str, Any]:
    content = []
    for token, value in zip(one.token_ids[start:end], one.logprobs[start:end], strict=True):
        text = token_text(token)
        content.append({"token": text, "bytes": list(text.encode()), "logprob": value, "top_logprobs": []})
    return {"content": content}


def _text_logprobs(one: Generation, start: int, end: int) -> dict[str, Any]:
    tokens = [token_text(token) for token in one.token_ids[start:end]]
    return {
        "text_offset": [-1] * len(tokens),
        "token_logprobs": one.logprobs[start:end],
        "tokens": tokens,
        "top_logprobs": [],
    }
