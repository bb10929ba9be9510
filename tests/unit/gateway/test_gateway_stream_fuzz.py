"""The stream parser against whatever an engine may send, in whatever pieces the network delivers it."""

import json
from collections.abc import AsyncIterator, Sequence
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from core.errors import EngineError, HoneError
from gateway.inference.exchange import EngineExchange
from gateway.inference.request import CapturePlan
from gateway.inference.stream import MAX_EVENT_BYTES, EventSplitter, event_data, with_data
from gateway.inference.target import Sent, Target
from gateway.inference.threads import Thread, message_digest, stream_digests
from gateway.metrics import GatewayMetrics
from gateway.upstream.errors import engine_error, stream_error

DEEP = b"[" * 100_000 + b"]" * 100_000
DONE = b"data: [DONE]\n\n"
PLANS = [
    CapturePlan(token_ids=False, logprobs=False, usage=False),
    CapturePlan(token_ids=False, logprobs=False, usage=True),
    CapturePlan(token_ids=True, logprobs=True, usage=True),
]
ADDED = {"token_ids": [1, 2], "logprobs": {"content": [{"token": "a", "logprob": -0.5}]}}
CUTS = st.lists(st.integers(0, 2000), max_size=12)
TEXT = st.text(max_size=20) | st.sampled_from(['"model":"engine"', "data: x\n\n", "[DONE]", '"error"', "\u2028"])
QUICK = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])


class Response:
    """An engine's body in given pieces; the connection ends after them."""

    def __init__(self, pieces: Sequence[bytes]) -> None:
        self._pieces = [piece for piece in pieces if piece]

    async def next(self) -> bytes:
        """The next piece."""
        return self._pieces.pop(0) if self._pieces else b""


async def never(_body: bytes) -> Any:
    """Nothing is sent here."""
    raise AssertionError


def exchange_of(pieces: Sequence[bytes], plan: CapturePlan, *, consent: bool = True) -> EngineExchange:
    """The exchange of a stream that comes in ``pieces``."""
    target = Target(
        policy="coder",
        version=1,
        variant="standard",
        deployment_id="dep_a",
        engine_model="engine",
        public_model="coder@1",
        plan=plan,
        send=never,
    )
    parts: Any = {
        "call": SimpleNamespace(consent=consent, store=False, request_id="req_a", idempotency_key=None),
        "request": SimpleNamespace(stream=True, choices=1),
        "held": SimpleNamespace(id="ep_a"),
        "admission": SimpleNamespace(headers=[]),
    }
    return EngineExchange(
        parts["call"],
        parts["request"],
        Sent(target, Response(pieces[1:]), pieces[0] if pieces else b"\n"),  # type: ignore[arg-type]
        held=parts["held"],
        turn_ids=("turn_a",),
        admission=parts["admission"],
        metrics=GatewayMetrics(CollectorRegistry()),
        started_at=0.0,
        clock=0.0,
    )


async def received(stream: AsyncIterator[bytes]) -> tuple[list[bytes], HoneError | None]:
    """What a client gets, and how it ended."""
    found: list[bytes] = []
    try:
        async for piece in stream:
            found.append(piece)
    except HoneError as error:
        return found, error
    return found, None


def cut(data: bytes, cuts: Sequence[int]) -> list[bytes]:
    """``data`` in pieces."""
    places = sorted({min(place, len(data)) for place in cuts} | {0, len(data)})
    return [data[a:b] for a, b in pairwise(places)]


def read_as_a_client(data: bytes) -> list[tuple[list[bytes], bytes]]:
    """A plain reader of server-sent events (WHATWG): per event its lines other than data, and its data."""
    events, lines = [], []
    for line in data.replace(b"\r\n", b"\n").split(b"\n"):
        if line:
            lines.append(line)
        elif lines:
            fields = [field for field in lines if not field.startswith(b"data:")]
            texts = [field[5:].strip() for field in lines if field.startswith(b"data:")]
            events.append((fields, b"\n".join(texts)))
            lines = []
    return events


@st.composite
def chunk(draw: st.DrawFn, *, captured: bool) -> dict[str, Any]:
    """A chunk as an engine sends it; ``captured``: with what the gateway has asked for."""
    choice: dict[str, Any] = {"index": draw(st.integers(0, 3)), "delta": {"content": draw(TEXT)}}
    choice["finish_reason"] = draw(st.sampled_from([None, "stop"]))
    choice |= ADDED if captured else {}
    order = [("id", "chatcmpl-1"), ("model", "engine"), ("choices", [choice]), ("odd", draw(st.none() | TEXT))]
    return dict(draw(st.permutations(order)))


def written(body: dict[str, Any], style: int) -> bytes:
    """JSON as engines write it: compact, with spaces, escaped, or over several lines."""
    if style == 0:
        return json.dumps(body, separators=(",", ":"), ensure_ascii=False).encode()
    return json.dumps(body, indent=1 if style == 3 else None, ensure_ascii=style == 2).encode()


def shown(body: dict[str, Any]) -> dict[str, Any]:
    """What a client is to see of a chunk."""
    choices = [choice | {name: None for name in ADDED if name in choice} for choice in body["choices"]]
    return body | {"model": "coder@1", "choices": choices}


@st.composite
def streams(draw: st.DrawFn) -> tuple[CapturePlan, bytes, list[tuple[list[bytes], Any]]]:
    """A plan, a well-formed stream, and what its client is to read."""
    plan = draw(st.sampled_from(PLANS))
    newline = draw(st.sampled_from([b"\n", b"\r\n"]))
    sent, expected = [], []
    for _ in range(draw(st.integers(0, 5))):
        if draw(st.integers(0, 4)) == 0:
            sent += [b": " + draw(st.sampled_from([b"ping", b"", b"\xff"])), b""]
            expected.append(([sent[-2]], b""))
        body = draw(chunk(captured=plan.token_ids))
        fields = draw(st.sampled_from([[], [], [b"event: message"], [b"id: 7", b"retry: 5"]]))
        lines = written(body, draw(st.integers(0, 3))).split(b"\n")
        prefix = draw(st.sampled_from([b"data: ", b"data:"]))
        sent += [*fields, *(prefix + line for line in lines), b"", *([b""] * draw(st.integers(0, 1)))]
        expected.append((fields, shown(body)))
    if plan.usage:
        sent += [b'data: {"model":"engine","choices":[],"usage":{"prompt_tokens":1,"completion_tokens":2}}', b""]
    return plan, newline.join([*sent, b"data: [DONE]", b"", b""]), [*expected, ([], b"[DONE]")]


@QUICK
@given(streams(), CUTS)
async def test_a_client_gets_what_the_engine_sent_without_what_was_added(stream, cuts):
    """Every event arrives, in order, as JSON equal to the engine's but for the model's name and the added fields."""
    plan, sent, expected = stream
    exchange = exchange_of(cut(sent, cuts), plan)
    pieces, error = await received(exchange.pieces())
    assert error is None
    found = []
    for fields, data in read_as_a_client(b"".join(pieces)):
        found.append((fields, json.loads(data) if data.startswith(b"{") else data))
    assert found == expected
    assert exchange.broken is None
    assert (exchange.usage is not None) == plan.usage


@QUICK
@given(streams(), CUTS, st.integers(0, 2000))
async def test_a_stream_that_ends_early_is_broken_and_what_came_whole_is_given_out(stream, cuts, length):
    """Without its end mark a stream ends in EngineError, and the client has got every whole event before it."""
    plan, sent, expected = stream
    sent = sent[: min(length, sent.rindex(b"data: [DONE]"))]
    exchange = exchange_of(cut(sent, cuts), plan)
    pieces, error = await received(exchange.pieces())
    assert isinstance(error, EngineError)
    assert exchange.broken == "engine_failed"
    found = read_as_a_client(b"".join(pieces))
    assert [fields for fields, _ in found] == [fields for fields, _ in expected[: len(found)]]
    assert exchange.metrics.stream_failures._value.get() == 1


GARBAGE = st.lists(
    st.binary(max_size=40)
    | st.sampled_from(
        [
            b"data: ", b"data", b"data:{", b"\n\n", b"\r\n\r\n", b"\r", b"\n", b"\0", b"\xff\xfe", b"data: null\n\n",
            b"data: 1\n\n", b'data: {"choices":null}\n\n', b'data: {"choices":[null]}\n\n', b"data: [DONE]",
            b'data: {"choices":[{"delta":{"content":"\xff"}}]}\n\n', b'data: {"\xff":1}\n\n', b"\xef\xbb\xbf",
            b'data: {"usage":{"prompt_tokens":99999999999999999999999}}\n\n', b'data: {"usage":-1}\n\n',
            b'data: {"error":"no memory"}\n\n', b'data: {"error":{"code":"x","message":7}}\n\n', DONE,
            b'data: {"choices":[{"index":-9,"delta":{"tool_calls":[{"index":-1}]}}]}\n\n',
            b'data: {"choices":[{"delta":{"tool_calls":[{"index":999999999999}]}}]}\n\n',
        ]
    ),
    max_size=12,
)  # fmt: skip


@QUICK
@example([b'data: {"error":' + DEEP + b"}\n\n"], [], PLANS[0], True)
@example([b'data: {"choices":' + DEEP + b"}\n\n", DONE], [], PLANS[0], True)
@example([b'data: {"odd":' + DEEP + b',"choices":[]}\n\n', DONE], [7], PLANS[2], True)
@example([b'data: {"usage":' + DEEP + b',"choices":[]}\n\n', DONE], [7], PLANS[2], False)
@given(GARBAGE, CUTS, st.sampled_from(PLANS), st.booleans())
async def test_garbage_is_an_engine_error_or_passes_and_never_crashes(parts, cuts, plan, consent):
    """Whatever bytes come, only Hone's own errors leave the exchange, and its record can be made."""
    sent = b"".join(parts)
    exchange = exchange_of(cut(sent, cuts), plan, consent=consent)
    pieces, error = await received(exchange.pieces())
    assert exchange.broken == (None if error is None else "engine_failed")
    assert error is not None or pieces[-1].endswith(DONE)
    assert consent or exchange.payloads == []
    thread = Thread(b"x", [])
    for payload in exchange.payloads:
        for reads in (lambda data: stream_digests(thread, [data]), lambda data: message_digest(thread, data)):
            try:
                reads(payload)
            except msgspec.DecodeError:
                continue


@QUICK
@given(GARBAGE, CUTS)
async def test_events_for_other_surfaces_are_those_of_the_stream(parts, cuts):
    """``events`` gives the data of the same events as ``pieces``, and fails in the same way."""
    sent = b"".join(parts) + b'\n\ndata: {"model":"engine",\ndata: "choices":[]}\n\n' + DONE
    pieces, error = await received(exchange_of(cut(sent, cuts), PLANS[0]).pieces())
    events, events_error = await received(exchange_of(cut(sent, cuts), PLANS[0]).events())
    datas = [data for _, data in read_as_a_client(b"".join(pieces)) if data and data != b"[DONE]"]
    if not any(b"\r" in part for part in parts):
        assert [event for event in events if event] == datas
    assert type(events_error) is type(error)


@QUICK
@given(st.binary(max_size=300), CUTS)
def test_any_bytes_give_the_same_events_however_they_are_cut(data, cuts):
    """Cutting changes neither the events nor the rest, also where lines end in odd ways."""
    whole, pieces = EventSplitter(), EventSplitter()
    events = whole.feed(data)
    assert [event for piece in cut(data, cuts) for event in pieces.feed(piece)] == events
    assert pieces.rest == whole.rest
    for event in events:
        event_data(event)


@given(st.lists(st.binary(max_size=9).filter(lambda data: data.strip() == data and data.splitlines() == [data])))
def test_data_of_several_lines_stays_data_of_several_lines(lines):
    """An event with new data keeps its other fields and reads back as the same data."""
    (event,) = EventSplitter().feed(with_data(b"event: x\r\ndata: old\r\nid: 1", b"\n".join(lines)))
    assert event_data(event) == (b"\n".join(lines) if lines else None)
    assert event.startswith(b"event: x\nid: 1")


@pytest.mark.parametrize("piece", [64 * 1024, 1024 * 1024])
def test_an_event_without_end_is_refused_at_a_bound(piece):
    """What is held of an event that never ends is bounded, and the stream fails as the engine's."""
    splitter, sent = EventSplitter(), 0
    with pytest.raises(EngineError, match="more than"):
        for _ in range(2 * MAX_EVENT_BYTES // piece):
            splitter.feed(b"x" * piece)
            sent += piece
    assert sent <= MAX_EVENT_BYTES
    assert splitter.rest == b""


async def test_an_event_without_end_fails_its_stream():
    """The client gets an engine error, not a gateway out of memory."""
    exchange = exchange_of([b"data: " + b"x" * (MAX_EVENT_BYTES // 4)] * 6, PLANS[2])
    pieces, error = await received(exchange.pieces())
    assert pieces == []
    assert isinstance(error, EngineError)
    assert exchange.broken == "engine_failed"


@given(st.binary(max_size=200) | st.sampled_from([DEEP, b'{"error":' + DEEP + b"}"]), st.integers(400, 599))
def test_any_refusal_of_an_engine_becomes_one_of_our_errors(body, status):
    """An engine's error body is read or quoted, and never crashes."""
    for error in (engine_error(status, body, {b"retry-after": body[:20]}), stream_error(body)):
        assert isinstance(error, HoneError)
        assert error.message
