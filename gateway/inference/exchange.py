"""One answer on its way from the engine to the client, and what is kept of it."""

import asyncio
import time
from collections.abc import AsyncIterator

import msgspec
import structlog

from core.errors import EngineError, HoneError
from gateway.capture.record import CANCELLED, ENGINE_FAILED, CapturedCall, numbers_alone
from gateway.episodes import HeldEpisode
from gateway.http.base import RawHeader
from gateway.inference.base import Call
from gateway.inference.notes import NotingRewriter
from gateway.inference.request import InferenceRequest
from gateway.inference.rewrite import AnswerRewriter, TokenUsage, engine_error_in
from gateway.inference.stream import DONE, EventSplitter, event_data, frame, with_data
from gateway.inference.target import Sent
from gateway.inference.weight_spans import Labels, corrected, first_version, labels_of_event, without_labels
from gateway.limits.base import Admission
from gateway.metrics import GatewayMetrics
from gateway.upstream.errors import stream_error

log = structlog.get_logger(__name__)

_MOST_TURN_IDS_SHOWN = 128
"""Clients bound the size of a header; a list of prompts can have more answers than this."""
TAIL_SECONDS = 1.0
UNREADABLE = (msgspec.DecodeError, RecursionError)
"""What JSON decoding raises for other text than JSON, and for JSON that is nested too deeply."""
_PREFIX = b"data: "
_END = b"\n\n"


class EngineExchange:
    """The answer of one Target; implements ``gateway.inference.base.Exchange``."""

    __slots__ = (
        "_failure",
        "_first",
        "_rewriter",
        "_sent",
        "_splitter",
        "admission",
        "answered",
        "broken",
        "call",
        "clock",
        "ended",
        "events_seen",
        "first_event_at",
        "held",
        "index",
        "keeps_content",
        "labels",
        "metrics",
        "payloads",
        "request",
        "response",
        "started_at",
        "target",
        "turn_ids",
    )

    def __init__(
        self,
        call: Call,
        request: InferenceRequest,
        sent: Sent,
        *,
        held: HeldEpisode,
        turn_ids: tuple[str, ...],
        admission: Admission,
        metrics: GatewayMetrics,
        started_at: float,
        clock: float,
    ) -> None:
        self.call = call
        self.request = request
        self.target = target = sent.target
        self.response = sent.response
        self._first = sent.first
        self.held = held
        self.turn_ids = turn_ids
        self.admission = admission
        self.metrics = metrics
        self.started_at = started_at
        self.clock = clock
        self.index = -1
        """The order in the Episode; below 0 until it is known."""
        self.keeps_content = call.consent or call.store
        self.payloads: list[bytes] = []
        self.broken: str | None = None
        self.first_event_at: float | None = None
        self.answered = False
        """Something of the answer has reached this side, so there is a Turn."""
        self.events_seen = 0
        self.ended = False
        """A stream's end mark has come, or what stands in its place."""
        self._failure: HoneError | None = None
        self._splitter: EventSplitter | None = None
        notes = target.exposure is not None and not self.keeps_content
        rewriter = NotingRewriter if notes else AnswerRewriter
        self._rewriter: AnswerRewriter = rewriter(target, single=request.choices == 1)
        self.labels: Labels | None = None
        """What the engine said of its weights, where they are full weights of a Policy."""
        self._sent: list[bytes] | None = None if call.idempotency_key is None else []

    @property
    def episode_id(self) -> str:
        """The Episode that the Turns belong to."""
        return self.held.id

    @property
    def usage(self) -> TokenUsage | None:
        """What the engine counted, as far as it has said so."""
        return self._rewriter.usage

    @property
    def headers(self) -> list[RawHeader]:
        """``x-hone-…`` and ``x-ratelimit-…`` headers for the client."""
        headers = self.target.headers
        if self.labels is not None:
            version = first_version(self.target, self.labels)
            headers = [(b"x-hone-policy-version", b"%d" % version), *headers[1:]]
        return [
            *headers,
            (b"x-hone-episode-id", self.held.id.encode()),
            (b"x-hone-turn-id", ",".join(self.turn_ids[:_MOST_TURN_IDS_SHOWN]).encode()),
            *self.admission.headers,
        ]

    @property
    def messages(self) -> dict[int, msgspec.Raw]:
        """Choice → its message, of a whole answer of which content is captured."""
        return self._rewriter.messages

    @property
    def deltas(self) -> dict[bytes, list[bytes | msgspec.Raw]] | None:
        """Choice, as it stands in the JSON → the pieces of its message; None: only ``payloads`` have them."""
        return self._rewriter.deltas

    @property
    def sent(self) -> bytes | None:
        """All that the client was sent, where the request may be repeated."""
        return None if self._sent is None else b"".join(self._sent)

    async def whole(self) -> bytes:
        """The answer's JSON as the client may see it. Raises EngineError."""
        return self.complete()

    def complete(self) -> bytes:
        """As ``whole``: everything has arrived before the exchange is made."""
        body = self._first
        try:
            if self.target.weights is not None:
                body, self.labels = without_labels(body)
            seen = self._rewriter.answer(body)
            if self.labels is not None:
                seen = corrected(seen, self.target, self.labels)
        except UNREADABLE as error:
            raise EngineError(f"the engine's answer cannot be read: {error}") from error
        if self.keeps_content:
            self.payloads.append(body)
        self.answered = True
        if self._sent is not None:
            self._sent.append(seen)
        return seen

    async def events(self) -> AsyncIterator[bytes]:
        """The data of every event of a stream as the client may see it, without the closing ``[DONE]``."""
        async for piece in self.pieces():
            for event in piece.split(_END):
                data = event_data(event) if event else None
                if data is not None and data != DONE:
                    yield data

    async def pieces(self) -> AsyncIterator[bytes]:
        """The stream for the client as server-sent events, in the pieces in which it comes, end mark included.

        Raises EngineError when the engine breaks off; what came before has been given out then.
        """
        data: bytes | None = self._first
        try:
            while True:
                piece = self.feed(data)
                if piece:
                    yield piece
                if self.ended:
                    self.check()
                    return
                data = await self.response.next()
        except HoneError:
            self.fail()
            raise

    def feed(self, data: bytes | None) -> bytes:
        """What the client may see of the next bytes of a stream; empty ``data``: there are no more.

        ``ended`` is true after the last of them; then ``check`` is to be called. Raises EngineError when the engine
        ended without an end mark; ``fail`` is to be called then.
        """
        if not data:
            raise EngineError("the engine ended the stream before its end mark")
        splitter = self._splitter
        if splitter is None:
            self.broken = CANCELLED
            splitter = self._splitter = EventSplitter()
        pieces: list[bytes] = []
        if self._take(splitter.feed(data), pieces):
            self.ended = True
            if self._failure is None:
                # A client closes its connection at the end mark: from here on that is no cancellation.
                self.broken = None
        piece = b"".join(pieces)
        if piece and self._sent is not None:
            self._sent.append(piece)
        return piece

    def check(self) -> None:
        """Raise what the engine put into the stream instead of an end."""
        if self._failure is not None:
            raise self._failure

    def fail(self) -> None:
        """Note that the engine broke the stream off."""
        self.broken = ENGINE_FAILED
        self.metrics.stream_failures.inc()

    def _take(self, events: list[bytes], pieces: list[bytes]) -> bool:
        """Put what the client may see of ``events`` into ``pieces``; whether the stream has ended, well or badly."""
        rewriter, kept = self._rewriter, self.payloads if self.keeps_content else None
        follows_weights = self.target.weights is not None
        for event in events:
            plain = event.startswith(_PREFIX) and b"\n" not in event
            data = event[6:] if plain else event_data(event)
            if data is None:
                pieces.append(event + _END)
                continue
            if data == DONE:
                pieces.append(frame(DONE))
                return True
            if self.first_event_at is None:
                self.first_event_at = time.perf_counter()
            try:
                if follows_weights and (labels := labels_of_event(data)) is not None:
                    self.labels = labels
                    continue
                if engine_error_in(data) is not None:
                    self._failure = stream_error(data)
                    return True
                self.answered = True
                self.events_seen += 1
                if kept is not None:
                    kept.append(data)
                seen = rewriter.chunk(data)
            except UNREADABLE as error:
                # Whatever this is, the client shall have it; the Turn is lost when it is built.
                self.metrics.capture_failures.labels("unreadable_chunk").inc()
                log.warning("chunk_unreadable", request_id=self.call.request_id, error=str(error))
                pieces.append(event + _END)
                continue
            if seen is not None:
                pieces += (_PREFIX, seen, _END) if plain else (with_data(event, seen),)
        return False

    async def finish_reading(self) -> None:
        """Read the few bytes after a stream's end mark, so that the connection can be used again."""
        if self.broken is not None:
            return
        try:
            async with asyncio.timeout(TAIL_SECONDS):
                while await self.response.next():
                    pass
        except (TimeoutError, EngineError) as error:
            log.debug("stream_tail_unreadable", error=repr(error))

    def captured(self) -> CapturedCall:
        """The record of the call, as far as it came."""
        call, target, usage = self.call, self.target, self._rewriter.usage
        keeps = self.keeps_content
        captured = CapturedCall(
            endpoint=self.request.endpoint,
            surface=call.surface,
            request=self.request.body if keeps else numbers_alone(self.request.fields),
            payloads=self.payloads,
            policy=target.policy,
            version=target.version,
            variant=target.variant,
            deployment_id=target.deployment_id,
            episode_id=self.held.id,
            opens_episode=self.held.new,
            index=self.index,
            tenant_id=call.caller.key.tenant_id,
            key_id=call.caller.key.id,
            turn_ids=list(self.turn_ids),
            request_id=call.request_id,
            idempotency_key=call.idempotency_key,
            consent=call.consent,
            stored=call.store,
            redact=call.caller.tenant.redact,
            started_at=self.started_at,
            total_seconds=time.perf_counter() - self.clock,
            first_token_seconds=None if self.first_event_at is None else self.first_event_at - self.clock,
            broken=self.broken,
            prompt_tokens=0 if usage is None else usage.prompt_tokens,
            completion_tokens=0 if usage is None else usage.completion_tokens,
            public_model=target.public_model,
            fallback_from=target.fallback_from,
            cached_tokens=None if usage is None else usage.cached_tokens,
            compacted=call.compacts is not None,
            exposure=target.exposure,
        )
        if isinstance(self._rewriter, NotingRewriter):
            self._rewriter.note(captured, self.request)
        return captured
