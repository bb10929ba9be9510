"""``/v1/chat/completions`` and ``/v1/completions``: the hot path, from the request's bytes to the answer's."""

import asyncio
import time
from collections.abc import Coroutine
from typing import Any

import structlog

from core import ids
from core.access import Scope
from core.errors import HoneError
from core.stored_completion import check_metadata
from gateway.auth import Authenticator, Caller, require_scope
from gateway.errors import JSON_HEADER, encode, error_body, error_headers, internal_error_body, must_be_logged
from gateway.http.base import IncomingRequest
from gateway.inference.base import Call
from gateway.inference.exchange import TAIL_SECONDS, EngineExchange
from gateway.inference.replay import ReplayedExchange
from gateway.inference.request import Endpoint, parse_request
from gateway.inference.service import InferenceService, OpenExchange
from gateway.inference.stream import frame
from gateway.metrics import CLIENT_LEFT_STATUS, STREAM_BROKEN_STATUS, GatewayMetrics
from gateway.request_headers import EVENT_STREAM, call_headers, decent_request_id
from gateway.upstream.base import BegunResponse

log = structlog.get_logger(__name__)

_OK = 200


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
        self.metrics = metrics

    def __call__(self, incoming: IncomingRequest) -> Coroutine[Any, Any, None] | None:
        """Answer one request; Hone's errors become OpenAI's error bodies.

        A request for which nothing has to be waited for but the engine is answered without a task.
        """
        clock = time.perf_counter()
        headers = incoming.headers
        request_id = decent_request_id(headers.get(b"x-request-id")) or ids.new_id(ids.REQUEST)
        try:
            caller = self._authenticator.known(headers)
            if caller is None:
                return self._authenticate(incoming, request_id, clock)
            opening = self._opening(incoming, caller, request_id)
            unattended = _Unattended(self, incoming, opening, request_id, clock)
            response = opening.begin() if incoming.watch(unattended) else None
        except Exception as error:  # noqa: BLE001 - logged or answered
            incoming.watch(None)
            self.done("", self.refuse(incoming, request_id, error), clock)
            return None
        if response is not None:
            unattended.wait_for(response)
            return None
        return self.answer(incoming, opening, request_id, clock)

    async def _authenticate(self, incoming: IncomingRequest, request_id: str, clock: float) -> None:
        """All of it for a caller that is not known yet."""
        try:
            caller = await self._authenticator.authenticate(incoming.headers)
            opening = self._opening(incoming, caller, request_id)
        except asyncio.CancelledError:
            self.done("", CLIENT_LEFT_STATUS if incoming.left else 500, clock)
            if not incoming.left:
                raise
        except Exception as error:  # noqa: BLE001 - logged or answered
            self.done("", self.refuse(incoming, request_id, error), clock)
        else:
            await self.answer(incoming, opening, request_id, clock)

    def _opening(self, incoming: IncomingRequest, caller: Caller, request_id: str) -> OpenExchange:
        if not caller.may_infer:
            require_scope(caller.key, Scope.INFERENCE)
        episode_id, idempotency_key, may_train, token_exact, compacts, latency, user = call_headers(incoming.headers)
        request = parse_request(self._endpoint, incoming.body, latency)
        if request.store:
            check_metadata(request.metadata)
        call = Call(
            caller,
            request_id,
            self._endpoint,
            episode_id,
            idempotency_key,
            may_train,
            request.store,
            token_exact,
            compacts,
            user,
        )
        return self._inference.exchange(call, request)

    async def answer(self, incoming: IncomingRequest, opening: OpenExchange, request_id: str, clock: float) -> None:
        """Answer a request that may have to wait for more than its engine."""
        incoming.watch(None)
        status, model = 500, ""
        try:
            async with opening as exchange:
                model = exchange.target.label
                if opening.stream:
                    status = await self._stream(incoming, exchange, request_id)
                else:
                    self.whole(incoming, exchange, await exchange.whole(), request_id)
                    status = 200
        except asyncio.CancelledError:
            status = CLIENT_LEFT_STATUS
            if not incoming.left:
                raise
        except Exception as error:  # noqa: BLE001 - logged or answered
            status = self.refuse(incoming, request_id, error)
        finally:
            self.done(model, status, clock)

    def whole(
        self, incoming: IncomingRequest, exchange: EngineExchange | ReplayedExchange, body: bytes, request_id: str
    ) -> None:
        """Give a whole answer."""
        incoming.answer(200, [JSON_HEADER, *exchange.headers, (b"x-request-id", request_id.encode())], body)

    def start(self, incoming: IncomingRequest, exchange: EngineExchange | ReplayedExchange, request_id: str) -> None:
        """Begin a stream."""
        incoming.start(200, [*EVENT_STREAM, *exchange.headers, (b"x-request-id", request_id.encode())])
        self.metrics.streams.inc()

    def break_off(self, incoming: IncomingRequest, request_id: str, error: HoneError) -> int:
        """Say in a stream why it goes no further; the status that is counted for it."""
        log.warning("stream_broken", request_id=request_id, error=error.message)
        incoming.write(frame(encode(error_body(error, request_id))))
        incoming.end()
        return STREAM_BROKEN_STATUS

    def stream_over(self, exchange: EngineExchange | ReplayedExchange) -> None:
        """Count a stream no more."""
        self.metrics.streams.dec()
        if exchange.first_event_at is not None:
            self.metrics.first_token(exchange.target.policy, exchange.first_event_at - exchange.clock)

    def refuse(self, incoming: IncomingRequest, request_id: str, error: Exception) -> int:
        """Answer with an error; its status. Raises what nobody expected, if an answer has begun."""
        if isinstance(error, HoneError):
            if must_be_logged(error):
                log.warning("request_failed", request_id=request_id, code=error.code, error=error.message)
            status, head = error.status, error_headers(error)
            body = error_body(error, request_id)
        else:
            log.error("request_crashed", request_id=request_id, path=self.path, error=repr(error), exc_info=error)
            if incoming.started:
                raise error
            status, head, body = 500, [JSON_HEADER], internal_error_body(request_id)
        incoming.answer(status, [*head, (b"x-request-id", request_id.encode())], encode(body))
        return status

    def done(self, model: str, status: int, clock: float) -> None:
        """Count an answered request."""
        self.metrics.request_done(self.path, model, status, time.perf_counter() - clock)

    async def _stream(
        self, incoming: IncomingRequest, exchange: EngineExchange | ReplayedExchange, request_id: str
    ) -> int:
        """Pass a stream on; the status that is counted for it."""
        self.start(incoming, exchange, request_id)
        try:
            async for piece in exchange.pieces():
                incoming.write(piece)
                await incoming.drain()
        except HoneError as error:
            return self.break_off(incoming, request_id, error)
        finally:
            self.stream_over(exchange)
        incoming.end()
        await incoming.drain()
        return 200


class _Unattended:
    """A request that is answered as its engine's bytes come, without a task.

    Whatever is no good answer of the engine's is left to the task of the ordinary way, which goes on from there.
    """

    __slots__ = ("_clock", "_endpoint", "_exchange", "_incoming", "_opening", "_request_id", "_response", "_tail")

    def __init__(
        self,
        endpoint: InferenceEndpoint,
        incoming: IncomingRequest,
        opening: OpenExchange,
        request_id: str,
        clock: float,
    ) -> None:
        self._endpoint = endpoint
        self._incoming = incoming
        self._opening = opening
        self._request_id = request_id
        self._clock = clock
        self._response: BegunResponse | None = None
        self._exchange: EngineExchange | None = None
        self._tail: asyncio.TimerHandle | None = None

    def wait_for(self, response: BegunResponse) -> None:
        """Go on when the engine's answer has come."""
        self._response = response
        if self._opening.stream:
            response.listen(self._on_part)
        else:
            response.listen(self._on_whole, whole=True)

    def client_left(self) -> None:
        """See ``Watcher``."""
        if self._exchange is not None:
            self._endpoint.stream_over(self._exchange)
        self._over(CLIENT_LEFT_STATUS)

    def client_reads(self) -> None:
        """See ``Watcher``."""
        if self._response is not None and self._exchange is not None:
            self._response.listen(self._on_part)
            self._on_part()

    def _on_whole(self) -> None:
        response = self._response
        assert response is not None
        if response.status != _OK or not response.ended:
            self._leave_it(response)
            return
        status = 500
        try:
            exchange = self._exchange = self._opening.arrived(response.take() or b"")
            self._endpoint.whole(self._incoming, exchange, exchange.complete(), self._request_id)
            status = _OK
        except Exception as error:  # noqa: BLE001 - logged or answered
            status = self._refused(error)
        finally:
            self._over(status)

    def _on_part(self) -> None:
        response, exchange, incoming = self._response, self._exchange, self._incoming
        assert response is not None
        if exchange is None and (response.status != _OK or not response.unread):
            self._leave_it(response)
            return
        try:
            if exchange is None:
                exchange = self._exchange = self._opening.arrived(b"")
                self._endpoint.start(incoming, exchange, self._request_id)
            while (data := response.take()) is not None:
                piece = exchange.feed(data)
                if piece:
                    incoming.write(piece)
                if exchange.ended:
                    exchange.check()
                    incoming.end()
                    self._stream_over(exchange, _OK)
                elif incoming.slow:
                    response.listen(None)
                else:
                    continue
                return
        except HoneError as error:
            assert exchange is not None
            exchange.fail()
            self._stream_over(exchange, self._endpoint.break_off(incoming, self._request_id, error))
        except Exception as error:  # noqa: BLE001 - logged or answered
            status = self._refused(error)
            if exchange is None:
                self._over(status)
            else:
                self._stream_over(exchange, status)

    def _stream_over(self, exchange: EngineExchange, status: int) -> None:
        self._endpoint.stream_over(exchange)
        response = self._response
        if status != _OK or response is None or response.ended:
            self._over(status)
            return
        # Of the few bytes after the end mark, so that the connection can be used again.
        self._opening.record()
        self._endpoint.done(exchange.target.label, status, self._clock)
        response.listen(self._tail_over, whole=True)
        self._tail = asyncio.get_running_loop().call_later(TAIL_SECONDS, self._tail_over)

    def _tail_over(self) -> None:
        if self._tail is not None:
            self._tail.cancel()
            self._tail = None
        if self._response is not None:
            self._response.listen(None)
            self._response = None
        self._opening.finish()

    def _over(self, status: int) -> None:
        response, self._response = self._response, None
        if response is not None:
            response.listen(None)
        self._opening.finish()
        self._endpoint.done("" if self._exchange is None else self._exchange.target.label, status, self._clock)

    def _refused(self, error: Exception) -> int:
        try:
            return self._endpoint.refuse(self._incoming, self._request_id, error)
        except Exception as another:  # noqa: BLE001 - the server deals with a fault in the middle of an answer
            self._incoming.watch(None)
            self._incoming.go_on(_raising(another))
            return 500

    def _leave_it(self, response: BegunResponse) -> None:
        response.listen(None)
        self._response = None
        work = self._endpoint.answer(self._incoming, self._opening, self._request_id, self._clock)
        self._incoming.go_on(work)


async def _raising(error: Exception) -> None:
    raise error
