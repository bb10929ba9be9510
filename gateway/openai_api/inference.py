"""One inference request from its first byte to its Turns: the hot path, in raw ASGI.

The order is fixed: who calls, what is asked, which Episode, which replica, the engine's answer to the client, and
only then the capture. A failing capture is counted and never shows in the answer.
"""

import asyncio
import time
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass

import aiohttp
import msgspec
import structlog

from core import ids
from core.access import ApiKey, Scope
from core.episode import Episode
from core.errors import EngineError, HoneError
from core.variant import ModelName
from gateway import asgi
from gateway.asgi import ClientLeft, ClientWatch
from gateway.auth import require_scope
from gateway.capture.turns import ENGINE_FAILED, Capture
from gateway.episodes import HeldEpisode
from gateway.errors import JSON_HEADER, encode, error_body, error_headers, must_be_logged, request_id_of
from gateway.idempotency import RecordedAnswer
from gateway.inference.request import MAX_CHOICES, Endpoint, InferenceRequest, parse_request
from gateway.inference.rewrite import AnswerRewriter
from gateway.middleware import CLIENT_LEFT, MODEL_LABEL, STREAM_BROKEN
from gateway.openai_api.dispatch import Answered, Dispatch
from gateway.openai_api.relay import StreamRelay
from gateway.state import Gateway
from serving.pool import Route

log = structlog.get_logger(__name__)

_TAIL_SECONDS = 1.0
_CONSENTING = (b"true", b"1")
"""Values of ``x-hone-train`` that leave the key's consent as it is; any other one withdraws it."""
_EVENT_STREAM = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


@dataclass(slots=True)
class _Call:
    """One request, and the names that its capture will have."""

    request: InferenceRequest
    key: ApiKey
    held: HeldEpisode
    turn_ids: tuple[str, ...]
    index: int | None
    """The order in the Episode, if the request repeats a recorded one."""
    request_id: str
    idempotency_key: str | None
    consent: bool
    started_at: float
    clock: float


class InferenceEndpoint:
    """``/v1/chat/completions`` or ``/v1/completions``."""

    def __init__(self, *, gateway: Gateway, endpoint: Endpoint) -> None:
        self._gateway = gateway
        self._endpoint: Endpoint = endpoint
        self._dispatch = Dispatch(
            routing=gateway.routing, upstream=gateway.upstream, metrics=gateway.metrics, endpoint=endpoint
        )

    async def __call__(self, scope: asgi.Scope, receive: asgi.Receive, send: asgi.Send) -> None:
        """Answer one request; Hone's errors become OpenAI's error bodies."""
        try:
            await self._serve(scope, receive, send)
        except ClientLeft:
            scope[CLIENT_LEFT] = True
        except HoneError as error:
            request_id = request_id_of(scope)
            if must_be_logged(error):
                log.warning("request_failed", request_id=request_id, code=error.code, error=error.message)
            body = encode(error_body(error, request_id))
            await asgi.send_answer(send, error.status, error_headers(error), body)

    async def _serve(self, scope: asgi.Scope, receive: asgi.Receive, send: asgi.Send) -> None:
        started_at, clock = time.time(), time.perf_counter()
        headers = asgi.header_map(scope)
        key = require_scope(await self._gateway.authenticator.authenticate(headers), Scope.INFERENCE)
        request = parse_request(self._endpoint, await asgi.read_body(receive))
        idempotency_key = _text(headers, b"idempotency-key")
        with ClientWatch(receive) as watch:
            async with self._gateway.answers.one_at_a_time(key.tenant_id, idempotency_key), AsyncExitStack() as stack:
                call = await self._open_call(key, request, headers, request_id_of(scope))
                call.started_at, call.clock = started_at, clock
                answered = await self._dispatch.send(request, call.held, stack)
                route = answered.route
                scope[MODEL_LABEL] = str(ModelName(name=route.policy, variant=route.variant))
                self._gateway.episodes.began(call.held, route.policy, route.version)
                if request.stream:
                    scope[STREAM_BROKEN] = await self._stream(call, answered, send, watch) == ENGINE_FAILED
                else:
                    await self._whole(call, answered, send, watch)

    async def _open_call(
        self, key: ApiKey, request: InferenceRequest, headers: Mapping[bytes, bytes], request_id: str
    ) -> _Call:
        idempotency_key = _text(headers, b"idempotency-key")
        episode_id = _text(headers, b"x-hone-episode-id")
        repeated = None
        if idempotency_key is not None:
            repeated = self._gateway.answers.recall(key.tenant_id, idempotency_key, request.choices)
        if repeated is not None:
            episode_id = repeated.episode_id
        return _Call(
            request=request,
            key=key,
            held=await self._gateway.episodes.find(key, episode_id),
            turn_ids=(
                tuple(ids.new_id(ids.TURN) for _ in range(request.choices)) if repeated is None else repeated.turn_ids
            ),
            index=None if repeated is None else repeated.index,
            request_id=request_id,
            idempotency_key=idempotency_key,
            consent=key.training_granted and headers.get(b"x-hone-train", b"true").strip().lower() in _CONSENTING,
            started_at=0.0,
            clock=0.0,
        )

    async def _whole(self, call: _Call, answered: Answered, send: asgi.Send, watch: ClientWatch) -> None:
        rewriter = AnswerRewriter(call.request.plan, public_name(answered.route))
        try:
            body = rewriter.answer(answered.body)
        except msgspec.DecodeError as error:
            raise EngineError(f"the engine's answer cannot be read: {error}") from error
        watch.stop()
        try:
            await asgi.send_answer(send, 200, [JSON_HEADER, *_headers(call, answered.route)], body)
        finally:
            self._record(self._capture(call, answered.route, [answered.body]), call)

    async def _stream(self, call: _Call, answered: Answered, send: asgi.Send, watch: ClientWatch) -> str | None:
        """Relay the stream; why it did not reach its end, or None."""
        metrics = self._gateway.metrics
        relay = StreamRelay(
            rewriter=AnswerRewriter(call.request.plan, public_name(answered.route)),
            upstream=self._gateway.upstream,
            metrics=metrics,
        )
        headers = [*_EVENT_STREAM, *_headers(call, answered.route)]
        with metrics.streams.track_inprogress():
            try:
                await send({"type": "http.response.start", "status": 200, "headers": headers})
                await relay.run(answered.response, send, watch)
            finally:
                capture = self._capture(call, answered.route, relay.payloads)
                capture.broken = relay.broken
                if relay.first_event_at is not None:
                    capture.first_token_seconds = relay.first_event_at - call.clock
                    metrics.first_token_seconds.labels(answered.route.policy).observe(capture.first_token_seconds)
                if relay.payloads:
                    self._record(capture, call)
        if relay.broken is None:
            await _finish_reading(answered.response)
        return relay.broken

    def _capture(self, call: _Call, route: Route, payloads: list[bytes]) -> Capture:
        return Capture(
            endpoint=self._endpoint,
            fields=call.request.fields,
            route=route,
            episode_id=call.held.id,
            index=call.held.take_index() if call.index is None else call.index,
            tenant_id=call.key.tenant_id,
            turn_ids=call.turn_ids,
            request_id=call.request_id,
            idempotency_key=call.idempotency_key,
            consent=call.consent,
            started_at=call.started_at,
            payloads=payloads,
            total_seconds=time.perf_counter() - call.clock,
        )

    def _record(self, capture: Capture, call: _Call) -> None:
        """Hand over to the recorder; nothing that goes wrong here may reach the client."""
        try:
            episode = None
            if call.held.new:
                episode = Episode(
                    id=call.held.id,
                    tenant_id=call.key.tenant_id,
                    policy=capture.route.policy,
                    trainable=call.consent,
                    created_at=call.started_at,
                )
            if self._gateway.recorder.record(capture, episode):
                call.held.new = False
            if call.idempotency_key is not None and capture.broken is None:
                answer = RecordedAnswer(capture.episode_id, capture.index, capture.turn_ids, time.monotonic())
                self._gateway.answers.remember(call.key.tenant_id, call.idempotency_key, answer)
        except Exception as error:
            self._gateway.metrics.capture_failures.labels("hand_over").inc()
            log.exception("capture_failed", request_id=call.request_id, error=repr(error))


def public_name(route: Route) -> str:
    """What a client calls what answered: ``coder@17``, ``coder-fast@17``, or the Base's own name."""
    version = None if route.policy == route.deployment.base else route.version
    return str(ModelName(name=route.policy, variant=route.variant, version=version))


def _headers(call: _Call, route: Route) -> list[tuple[bytes, bytes]]:
    return [
        (b"x-hone-policy-version", str(route.version).encode()),
        (b"x-hone-variant", route.variant.value.encode()),
        (b"x-hone-episode-id", call.held.id.encode()),
        # Clients bound the size of a header; a list of prompts can have more answers than this.
        (b"x-hone-turn-id", ",".join(call.turn_ids[:MAX_CHOICES]).encode()),
    ]


def _text(headers: Mapping[bytes, bytes], name: bytes) -> str | None:
    value = headers.get(name, b"").strip()
    return value.decode("latin-1") if value else None


async def _finish_reading(response: aiohttp.ClientResponse) -> None:
    """Read the few bytes after the end mark, so that the connection can be used again."""
    try:
        async with asyncio.timeout(_TAIL_SECONDS):
            await response.content.read()
    except (aiohttp.ClientError, OSError) as error:
        log.debug("stream_tail_unreadable", error=repr(error))
