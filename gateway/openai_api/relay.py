"""Passes an engine's stream to the client event by event, and keeps what the Turns will be made of."""

import time
from collections.abc import AsyncIterator

import aiohttp
import msgspec
import structlog

from core.errors import EngineError, HoneError
from gateway.asgi import ClientWatch, Send
from gateway.capture.turns import CANCELLED, ENGINE_FAILED
from gateway.errors import encode, error_body
from gateway.inference.rewrite import AnswerRewriter, engine_error_in
from gateway.metrics import GatewayMetrics
from gateway.openai_api.stream import DONE, EventSplitter, event_data, frame
from gateway.upstream.aiohttp_client import Upstream
from gateway.upstream.errors import stream_error

log = structlog.get_logger(__name__)


class StreamRelay:
    """One stream. Afterwards ``payloads``, ``broken`` and ``first_event_at`` say what happened."""

    def __init__(self, *, rewriter: AnswerRewriter, upstream: Upstream, metrics: GatewayMetrics) -> None:
        self._rewriter = rewriter
        self._upstream = upstream
        self._metrics = metrics
        self._ended = False
        self.payloads: list[bytes] = []
        self.broken: str | None = CANCELLED
        """Until the stream has ended in some other way, the client has left."""
        self.first_event_at: float | None = None

    async def run(self, response: aiohttp.ClientResponse, send: Send, watch: ClientWatch) -> None:
        """Relay until the engine's end mark, or its failure, which becomes the stream's last event."""
        splitter = EventSplitter()
        try:
            async for data in self._read(response):
                pieces = [piece for event in splitter.feed(data) if (piece := self._piece(event)) is not None]
                if self._ended:
                    # A client closes its connection at the end mark: from here on that is no cancellation.
                    watch.stop()
                    self.broken = None
                    await send({"type": "http.response.body", "body": b"".join(pieces)})
                    return
                if pieces:
                    await send({"type": "http.response.body", "body": b"".join(pieces), "more_body": True})
            raise EngineError("the engine ended the stream before its end mark")
        except HoneError as error:
            watch.stop()
            self.broken = ENGINE_FAILED
            self._metrics.stream_failures.inc()
            log.warning("stream_broken", error=error.message)
            await send({"type": "http.response.body", "body": frame(encode(error_body(error)))})

    async def _read(self, response: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
        try:
            async for data in response.content.iter_any():
                yield data
        except aiohttp.ServerTimeoutError as error:
            raise self._upstream.too_slow(error) from error
        except (aiohttp.ClientError, OSError) as error:
            raise EngineError(f"the engine broke off the stream: {type(error).__name__}") from error

    def _piece(self, event: bytes) -> bytes | None:
        """The bytes that an event becomes for the client; raises the engine's error if the event is one."""
        data = event_data(event)
        if data is None or self._ended:
            return event + b"\n\n" if data is None else None
        if data == DONE:
            self._ended = True
            return frame(DONE)
        if self.first_event_at is None:
            self.first_event_at = time.perf_counter()
        try:
            if engine_error_in(data) is not None:
                raise stream_error(data)
            self.payloads.append(data)
            rewritten = self._rewriter.chunk(data)
        except msgspec.DecodeError as error:
            # Whatever this is, the client shall have it; the Turn is lost when it is built.
            self._metrics.capture_failures.labels("unreadable_chunk").inc()
            log.warning("chunk_unreadable", error=str(error))
            return event + b"\n\n"
        return None if rewritten is None else frame(rewritten)
