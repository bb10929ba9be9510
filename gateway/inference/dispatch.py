"""Sends a request to a replica that can answer it, and to another one if that one is away."""

import asyncio
import random
from collections.abc import Callable, Coroutine
from dataclasses import replace
from functools import partial

import structlog

from core.config.schema import HoneConfig
from core.errors import (
    EngineError,
    EngineTimeout,
    EngineUnavailable,
    HoneError,
    InvalidRequest,
    RateLimited,
)
from core.variant import ModelName, Variant, parse_model_name
from gateway.capture.record import CapturedCall
from gateway.episodes import HeldEpisode
from gateway.inference.exact import Continuation
from gateway.inference.exchange import EngineExchange
from gateway.inference.fallbacks import delay, next_attempt, plan_attempts, retry_after_of
from gateway.inference.request import INJECTED_FIELDS, CapturePlan, Endpoint, InferenceRequest, engine_body
from gateway.inference.routes import Routes
from gateway.inference.splice import FallbackCause
from gateway.inference.swap_wait import SwapWait
from gateway.inference.target import Begun, Sent, Target
from gateway.inference.weight_spans import settle_spans
from gateway.metrics import GatewayMetrics
from gateway.outside.models import OutsideModels
from gateway.routing import Routing
from gateway.upstream.base import Unreachable, Upstream, UpstreamResponse
from gateway.upstream.errors import engine_error
from serving.pool import Route

log = structlog.get_logger(__name__)

ENGINE_PATHS: dict[Endpoint, str] = {
    "chat.completions": "/v1/chat/completions",
    "completions": "/v1/completions",
}
_PROMPTS: dict[Endpoint, str] = {"chat.completions": "messages", "completions": "prompt"}
_REFUSED = (400, 422)
_OK = 200
TRANSIENT = (EngineError, RateLimited)
"""Failures of what answers, not of what was asked: another model may do better."""


class Dispatch:
    """Chooses who answers."""

    def __init__(
        self,
        *,
        config: HoneConfig,
        routing: Routing,
        upstream: Upstream,
        outside: OutsideModels,
        metrics: GatewayMetrics,
    ) -> None:
        self._fallbacks = config.gateway.fallbacks
        self._retries = config.gateway.retries
        self._outside = outside
        self._routing = routing
        self._routes = Routes(config=config, routing=routing)
        self._swaps = SwapWait(routing=routing, metrics=metrics, longest_seconds=config.gateway.swap_wait_seconds)
        self._upstream = upstream
        self._metrics = metrics

    async def send(
        self,
        request: InferenceRequest,
        held: HeldEpisode,
        plan: CapturePlan,
        exact: Continuation | None,
        may_use: Callable[[str], bool],
        begun: Begun | None = None,
    ) -> Sent:
        """The first successful response, of the model that was asked for or of a fallback that the caller may use.

        Raises what is wrong with the request, EngineUnavailable when nobody that holds the version answers, and
        what the routing table raises; of several failures the last one. ``begun``: what ``begin`` gave.
        """
        try:
            if begun is not None:
                return await self._go_on(request, held, begun, plan, exact)
            return await self._attempt(request, request.model_text, request.model, held, plan, exact)
        except TRANSIENT as error:
            return await self._attempt_again(request, held, plan, exact, may_use, error)

    def begin(self, request: InferenceRequest, held: HeldEpisode, plan: CapturePlan) -> Begun | None:
        """Write the request to a replica without waiting; None: only ``send`` can tell what becomes of it.

        Either ``close`` must follow or ``send``.
        """
        name = request.model_text
        if "/" in name and self._outside.knows(name):
            return None
        try:
            route = self._routes.first(request, request.model, held)
            target = self._target(request, route, plan)
            if target.url is None:
                return None
            body = engine_body(request, target.engine_model_json, target.plan)
            response = self._upstream.begin(b"POST", target.url, body)
        except (HoneError, Unreachable):
            return None
        if response is None:
            return None
        self._begins(target)
        return Begun(route, target, body, response)

    async def _go_on(
        self,
        request: InferenceRequest,
        held: HeldEpisode,
        begun: Begun,
        plan: CapturePlan,
        exact: Continuation | None,
    ) -> Sent:
        target = begun.target
        try:
            return await self._counted(self._ask(request, target, target.plan, begun), target)
        except Unreachable as error:
            return await self._try_others(request, request.model, held, begun.route, plan, exact, error)

    async def _attempt_again(
        self,
        request: InferenceRequest,
        held: HeldEpisode,
        plan: CapturePlan,
        exact: Continuation | None,
        may_use: Callable[[str], bool],
        error: HoneError,
    ) -> Sent:
        attempts = [
            attempt
            for attempt in plan_attempts(request.model_text, self._fallbacks, self._retries)
            if attempt.fallback_from is None or may_use(attempt.model)
        ]
        failed = attempts[0]
        while True:
            attempt = next_attempt(attempts, failed, error)
            if attempt is None:
                raise error
            if attempt.model == failed.model:
                await asyncio.sleep(delay(failed.number, retry_after_of(error), random.random))
            self._metrics.engine_retries.inc()
            log.warning("attempt_failed", model=failed.model, next=attempt.model, error=error.message)
            # A replica that has just failed is none to stay with.
            held.last_deployment = None
            try:
                model = parse_model_name(attempt.model)
                sent = await self._attempt(request, attempt.model, model, held, plan, exact)
            except TRANSIENT as next_error:
                failed, error = attempt, next_error
                continue
            if attempt.fallback_from is not None:
                self._metrics.fallbacks.labels(attempt.fallback_from, attempt.model).inc()
                sent.target = replace(sent.target, fallback_from=attempt.fallback_from)
            return sent

    async def _attempt(
        self,
        request: InferenceRequest,
        name: str,
        model: ModelName,
        held: HeldEpisode,
        plan: CapturePlan,
        exact: Continuation | None,
    ) -> Sent:
        if self._outside.knows(name) and not self._routing.serves(model):
            return await self._send_outside(request, name, plan)
        return await self._send_to_engine(request, model, held, plan, exact)

    async def _send_outside(self, request: InferenceRequest, name: str, plan: CapturePlan) -> Sent:
        """Ask another provider's model: it knows nothing of token ids, and its answers never train."""
        outside_plan = CapturePlan(token_ids=False, logprobs=False, usage=plan.usage)

        async def send(body: bytes) -> UpstreamResponse:
            return await self._outside.send(name, request.endpoint, body, stream=request.stream)

        target = Target(
            policy=name,
            version=0,
            variant=Variant.STANDARD.value,
            deployment_id=f"outside:{name.partition('/')[0]}",
            engine_model=name,
            public_model=name,
            plan=outside_plan,
            send=send,
        )
        try:
            return await self._try(request, target)
        except Unreachable as error:
            raise EngineUnavailable(f"'{name}' does not answer: {error}") from error

    def settle_spans(self, captured: CapturedCall, exchange: EngineExchange) -> None:
        """Write into a record which versions of full weights sampled it."""
        now = self._routing.deployment(exchange.target.deployment_id)
        settle_spans(captured, exchange.target, exchange.labels, now)

    def _begins(self, target: Target) -> None:
        """A request is on its way to a replica."""
        self._routing.in_flight.began(target.deployment_id)
        if target.variant_reason is not None:
            code = target.variant_reason.partition(";")[0]
            self._metrics.variant_reasons.labels(target.variant, code).inc()

    def close(self, sent: Sent | Begun) -> None:
        """The answer has ended, or is wanted no more."""
        sent.response.close()
        self._routing.in_flight.ended(sent.target.deployment_id)

    async def _send_to_engine(
        self,
        request: InferenceRequest,
        model: ModelName,
        held: HeldEpisode,
        plan: CapturePlan,
        exact: Continuation | None,
    ) -> Sent:
        route = await self._swaps.route(model, lambda: self._routes.first(request, model, held))
        try:
            return await self._try_route(request, route, plan, exact)
        except Unreachable as error:
            return await self._try_others(request, model, held, route, plan, exact, error)

    async def _try_others(
        self,
        request: InferenceRequest,
        model: ModelName,
        held: HeldEpisode,
        route: Route,
        plan: CapturePlan,
        exact: Continuation | None,
        error: Unreachable,
    ) -> Sent:
        """Other replicas that hold the version of ``route``, which did not answer."""
        failed: set[str] = set()
        while True:
            failed.add(route.deployment.id)
            self._metrics.engine_retries.inc()
            log.warning("replica_unreachable", deployment_id=route.deployment.id, error=str(error))
            route = self._routes.other(request, model, held, route, failed)
            try:
                return await self._try_route(request, route, plan, exact)
            except Unreachable as another:
                error = another

    async def _try_route(
        self, request: InferenceRequest, route: Route, plan: CapturePlan, exact: Continuation | None
    ) -> Sent:
        target = self._target(request, route, plan)
        if exact is None:
            return await self._try(request, target)
        return await self._try_exactly(request, target, route, exact)

    async def _try_exactly(
        self, request: InferenceRequest, target: Target, route: Route, exact: Continuation
    ) -> Sent:
        """Ask with the ids of earlier answers; where the engine refuses them, as if there were none."""
        with_ids = await exact.applied_to(
            target, url=route.deployment.url, base=route.deployment.base, room=route.max_model_len
        )
        try:
            return await self._try(request, with_ids)
        except InvalidRequest:
            if with_ids is target:
                raise
            exact.fell_back(FallbackCause.ENGINE_REFUSED)
            return await self._try(request, target)

    def _target(self, request: InferenceRequest, route: Route, plan: CapturePlan) -> Target:
        key = (request.endpoint, plan)
        known = route.memo.get(key)
        if isinstance(known, Target):
            return known
        url = route.deployment.url + ENGINE_PATHS[request.endpoint]
        target = Target(
            policy=route.policy,
            version=route.version,
            variant=route.variant.value,
            deployment_id=route.deployment.id,
            engine_model=route.engine_model,
            public_model=route.public_model,
            weights=route.weights,
            variant_reason=route.reason,
            plan=plan,
            send=partial(self._upstream.send, b"POST", url),
            url=url,
        )
        route.memo[key] = target
        return target

    async def _try(self, request: InferenceRequest, target: Target) -> Sent:
        self._begins(target)
        return await self._counted(self._ask(request, target, target.plan), target)

    async def _counted(self, asking: Coroutine[None, None, Sent], target: Target) -> Sent:
        try:
            return await asking
        except BaseException:
            self._routing.in_flight.ended(target.deployment_id)
            raise

    async def _ask(
        self, request: InferenceRequest, target: Target, plan: CapturePlan | None, begun: Begun | None = None
    ) -> Sent:
        """Send with what ``plan`` adds, and without it where the engine refuses that."""
        if begun is not None and target.url is not None:
            response = await self._upstream.send(b"POST", target.url, begun.body, begun=begun.response)
        else:
            response = await target.send(engine_body(request, target.engine_model_json, plan))
        if response.status == _OK:
            return Sent(target, response, await _first_bytes(response, stream=request.stream))
        status = response.status
        async with response:
            body = await response.read()
        if plan is not None and status in _REFUSED and _names_injected_field(body):
            self._metrics.capture_failures.labels("engine_refused_fields").inc()
            return await self._ask(request, target, None)
        raise engine_error(status, body, response.headers, prompt=_PROMPTS[request.endpoint])


async def _first_bytes(response: UpstreamResponse, *, stream: bool) -> bytes:
    """The body, or the first bytes of a stream: until they are here, another replica can be asked.

    Raises Unreachable when the engine breaks off before, EngineTimeout when it is silent for too long.
    """
    try:
        first = await (response.next() if stream else response.read())
        if stream and not first:
            raise Unreachable("the engine ended the stream before its first event")
    except BaseException as error:
        response.close()
        if isinstance(error, EngineError) and not isinstance(error, EngineTimeout):
            raise Unreachable(error.message) from error
        raise
    return first


def _names_injected_field(body: bytes) -> bool:
    """Whether an engine's refusal is about something that the gateway added."""
    return any(name.encode() in body for name in INJECTED_FIELDS)
