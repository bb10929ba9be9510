"""Cuts what was captured out of an answer without decoding it: most of its bytes are token ids and log-probs.

Ids and log-probs only of answers of one choice, as vLLM writes them: in this order and without spaces; anything else
is left to the decoder. Names are searched with their quotes: inside a JSON string a quote is escaped, so nothing that
was said can be taken for a field.
"""

import re
from typing import Any, Final, NamedTuple

import msgspec

_DELTA: Final = b'"delta":{'
_USAGE: Final = b'"usage":{'
_MESSAGE: Final = b'"message":{'
_LOGPROBS: Final = b',"logprobs":{'
_FINISH: Final = b',"finish_reason":'
_TOKEN_IDS: Final = b'"token_ids":['
_PROMPT_IDS: Final = b'"prompt_token_ids":['
_NULLED_LOGPROBS: Final = b',"logprobs":null'
_PROMPT_TOKENS: Final = re.compile(rb'"usage":\{"prompt_tokens":(\d+),"total_tokens":\d+,"completion_tokens":(\d+)')
_METRICS: Final = b'"metrics":'
_DRAFT_COUNTS: Final = re.compile(
    rb'"metrics":\s*(?P<all>\{[^{}]*(?P<field>"speculative_decoding":\s*(?P<counts>\{[^{}]*\}))[^{}]*\})'
)

_decode_metrics = msgspec.json.Decoder(dict[str, Any]).decode


class Cut(NamedTuple):
    """An answer without what was captured."""

    body: bytes
    message: bytes
    """The JSON of the answer's message."""
    prompt_tokens: int
    completion_tokens: int


def cut_whole(body: bytes) -> Cut | None:
    """The answer with log-probs, token ids and prompt ids nulled; None where it has another form than vLLM's.

    Only for an answer of one choice: with several it would leave what it did not find.
    """
    message = body.find(_MESSAGE)
    logprobs = body.find(_LOGPROBS, message)
    finish = body.find(_FINISH, logprobs)
    ids = body.find(_TOKEN_IDS, finish)
    ids_end = body.find(b"]", ids)
    prompt = body.find(_PROMPT_IDS, ids_end)
    prompt_end = body.find(b"]", prompt)
    if not 0 < message < logprobs < finish < ids < ids_end < prompt < prompt_end:
        return None
    usage = _PROMPT_TOKENS.search(body, ids_end)
    if usage is None:
        return None
    parts = (
        body[:logprobs],
        _NULLED_LOGPROBS,
        body[finish : ids + len(_TOKEN_IDS) - 1],
        b"null",
        body[ids_end + 1 : prompt + len(_PROMPT_IDS) - 1],
        b"null",
        body[prompt_end + 1 :],
    )
    said = body[message + len(_MESSAGE) - 1 : logprobs]
    return Cut(b"".join(parts), said, int(usage[1]), int(usage[2]))


def cut_chunk(data: bytes) -> tuple[bytes, bytes] | None:
    """One event of a stream with log-probs and token ids nulled, and the JSON of its delta.

    None for any other event than one with a part of the answer alone. Only for an answer of one choice.
    """
    delta = data.find(_DELTA) + len(_DELTA) - 1
    logprobs = data.find(_LOGPROBS, delta)
    finish = data.find(_FINISH, logprobs)
    ids = data.find(_TOKEN_IDS, finish)
    end = data.find(b"]", ids)
    if not len(_DELTA) <= delta < logprobs < finish < ids < end or _PROMPT_IDS in data or _USAGE in data:
        return None
    said = data[delta:logprobs]
    if said == b"{}":
        return None
    ids += len(_TOKEN_IDS) - 1
    return b"%b%b%bnull%b" % (data[:logprobs], _NULLED_LOGPROBS, data[finish:ids], data[end + 1 :]), said


def without_draft_counts(body: bytes, *, event: bool) -> bytes:
    """A fast engine's answer, or a stream's ``event``, as it would be had nobody asked for counts of draft tokens.

    vLLM writes unset fields of whole answers as null, and leaves them out of events. Timings that it was started to
    tell stay. Raises msgspec.DecodeError.
    """
    start = body.rfind(_METRICS)
    found = None if start < 0 else _DRAFT_COUNTS.match(body, start)
    if found is None:
        return body
    metrics = _decode_metrics(found["all"])
    alone = all(value is None for name, value in metrics.items() if name != "speculative_decoding")
    if event:
        return _left_out(body, *(found.span() if alone else found.span("field")))
    first, end = found.span("all" if alone else "counts")
    return b"%bnull%b" % (body[:first], body[end:])


def _left_out(body: bytes, start: int, end: int) -> bytes:
    """``body`` without a field, and without the comma between it and its neighbour."""
    before, after = body[:start].rstrip(), body[end:]
    if before.endswith(b","):
        return before[:-1] + after
    return before + after.lstrip().removeprefix(b",")
