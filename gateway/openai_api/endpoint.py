"""``/v1/chat/completions`` and ``/v1/completions``: the hot path, from the request's bytes to the answer's."""

import asyncio
import time

import structlog

from core import ids
from core.access import Scope
from core.errors import HoneError
from core.stored_completion import check_metadata
from gateway.auth import Authenticator, require_scope
from gateway.consent import may_train, token_exact
from gateway.errors import JSON_HEADER, encode, error_body, error_headers, internal_error_body, must_be_logged
from gateway.http.base import IncomingRequest
from gateway.inference.base import Call
from gateway.inference.exchange import EngineExchange
from gateway.inference.replay import ReplayedExchange
from gateway.inference.request import Endpoint, parse_request
from gateway.inference.service import InferenceService
from gateway.inference.stream import frame
from gateway.metrics import CLIENT_LEFT_STATUS, STREAM_BROKEN_STATUS, GatewayMetrics
from gateway.request_headers import EVENT_STREAM, decent_request_id, header_text

log = structlog.get_logger(__name__)


class InferenceEndpoint:
    """A handler for one of the two routes."""

    def __init__(
        self,
        *,
        path: str,
        endpoint: Endpoint,
        authenticator: Authenticator,
        inference: InferenceService,
        metrics: GatewayMetrics,
    ) -> None:
        self.path = path
        self._endpoint: Endpoint = endpoint
        self._authenticator = authenticator
        self._inference = inference
        self._metrics = metrics

    async def __call__(self, incoming: IncomingRequest) -> None:
        """Answer one request; Hone's errors become OpenAI's error bodies."""
        clock = time.perf_counter()
        headers = incoming.headers
        request_id = decent_request_id(headers.get(b"x-request-id")) or ids.new_id(ids.REQUEST)
        status, model = 500, ""
        try:
            caller = await self._authenticator.authenticate(headers)
            require_scope(caller.key, Scope.INFERENCE)
            request = parse_request(self._endpoint, incoming.body)
            if request.store:
                check_metadata(request.metadata)
            call = Call(
                caller=caller,
                request_id=request_id,
                surface=self._endpoint,
                episode_id=header_text(headers, b"x-hone-episode-id"),
                idempotency_key=header_text(headers, b"idempotency-key"),
                may_train=may_train(headers),
                store=request.store,
                token_exact=token_exact(headers),
            )
            async with self._inference.exchange(call, request) as exchange:
                model = exchange.target.label
                if request.stream:
                    status = await self._stream(incoming, exchange, request_id)
                else:
                    body = await exchange.whole()
                    incoming.answer(
                        200, [JSON_HEADER, *exchange.headers, (b"x-request-id", request_id.encode())], body
                    )
                    status = 200
        except asyncio.CancelledError:
            status = CLIENT_LEFT_STATUS
            if not incoming.left:
                raise
        except HoneError as error:
            status = error.status
            if must_be_logged(error):
                log.warning("request_failed", request_id=request_id, code=error.code, error=error.message)
            head = [*error_headers(error), (b"x-request-id", request_id.encode())]
            incoming.answer(status, head, encode(error_body(error, request_id)))
        except Exception as error:
            log.exception("request_crashed", request_id=request_id, path=self.path, error=repr(error))
            if incoming.started:
                raise
            head = [JSON_HEADER, (b"x-request-id", request_id.encode())]
            incoming.answer(500, head, encode(internal_error_body(request_id)))
        finally:
            self._metrics.request_done(self.path, model, status, time.perf_counter() - clock)

    async def _stream(
        self, incoming: IncomingRequest, exchange: EngineExchange | ReplayedExchange, request_id: str
    ) -> int:
        """Pass a stream on; the status that is counted for it."""
        metrics = self._metrics
        incoming.start(200, [*EVENT_STREAM, *exchange.headers, (b"x-request-id", request_id.encode())])
        metrics.streams.inc()
        try:
            async for piece in exchange.pieces():
                incoming.write(piece)
                await incoming.drain()
        except HoneError as error:
            log.warning("stream_broken", request_id=request_id, error=error.message)
            incoming.write(frame(encode(error_body(error, request_id))))
            incoming.end()
            return STREAM_BROKEN_STATUS
        finally:
            metrics.streams.dec()
            if exchange.first_event_at is not None:
                metrics.first_token(exchange.target.policy, exchange.first_event_at - exchange.clock)
        incoming.end()
        await incoming.drain()
        return 200
