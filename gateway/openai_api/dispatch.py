"""Sends a request to a replica that can answer it, and to another one if that one is away."""

from contextlib import AsyncExitStack
from dataclasses import dataclass

import aiohttp
import structlog

from core.errors import EngineUnavailable, HoneError, ModelNotFound, VersionNotServed
from gateway.episodes import HeldEpisode
from gateway.inference.request import INJECTED_FIELDS, Endpoint, InferenceRequest, engine_body
from gateway.metrics import GatewayMetrics
from gateway.routing import Routing
from gateway.upstream.aiohttp_client import Upstream
from gateway.upstream.base import Unreachable
from gateway.upstream.errors import engine_error
from serving.pool import Route

log = structlog.get_logger(__name__)

_ENGINE_PATHS: dict[Endpoint, str] = {
    "chat.completions": "/v1/chat/completions",
    "completions": "/v1/completions",
}
_REFUSED = (400, 422)


@dataclass(frozen=True, slots=True)
class Answered:
    """An engine's successful response; ``body`` is read already unless the request asked for a stream."""

    route: Route
    response: aiohttp.ClientResponse
    body: bytes


class Dispatch:
    """Chooses replicas for one endpoint."""

    def __init__(self, *, routing: Routing, upstream: Upstream, metrics: GatewayMetrics, endpoint: Endpoint) -> None:
        self._routing = routing
        self._upstream = upstream
        self._metrics = metrics
        self._path = _ENGINE_PATHS[endpoint]

    async def send(self, request: InferenceRequest, held: HeldEpisode, stack: AsyncExitStack) -> Answered:
        """The first replica's answer; the connection is given back when ``stack`` is left.

        Raises what the engine says is wrong with the request, EngineUnavailable when no replica that holds the
        version answers, and what the routing table raises.
        """
        route = self._first_route(request, held)
        failed: set[str] = set()
        while True:
            try:
                return await self._try(request, route, stack)
            except Unreachable as error:
                failed.add(route.deployment.id)
                self._metrics.engine_retries.inc()
                log.warning("replica_unreachable", deployment_id=route.deployment.id, error=str(error))
                route = self._other_route(request, route, failed, error)

    def _first_route(self, request: InferenceRequest, held: HeldEpisode) -> Route:
        if request.model.version is not None:
            return self._routing.resolve(request.model)
        wanted = held.wanted_version(request.model)
        if wanted is None:
            return self._routing.resolve(request.model)
        try:
            return self._routing.resolve(request.model, pinned_version=wanted)
        except (VersionNotServed, ModelNotFound):
            # A conversation outlives the version that it began with; a pinned Episode does not.
            if held.pinned is not None and held.pinned[0] == request.model.name:
                raise
            return self._routing.resolve(request.model)

    def _other_route(self, request: InferenceRequest, route: Route, failed: set[str], error: Unreachable) -> Route:
        try:
            return self._routing.resolve(request.model, pinned_version=route.version, exclude=failed)
        except HoneError as other:
            raise EngineUnavailable(
                f"no replica that holds '{route.policy}' version {route.version} answers",
                hint="try again in a few seconds",
            ) from (other if other.status < 500 else error)

    async def _try(self, request: InferenceRequest, route: Route, stack: AsyncExitStack) -> Answered:
        async with AsyncExitStack() as attempt:
            attempt.enter_context(self._routing.in_flight.track(route.deployment.id))
            response, body = await self._post(request, route, attempt, capture=True)
            plan = request.plan
            if response.status in _REFUSED and (plan.token_ids or plan.logprobs) and _names_injected_field(body):
                self._metrics.capture_failures.labels("engine_refused_fields").inc()
                response, body = await self._post(request, route, attempt, capture=False)
            if response.status != 200:
                raise engine_error(response.status, body)
            stack.push_async_exit(attempt.pop_all())
            return Answered(route, response, body)

    async def _post(
        self, request: InferenceRequest, route: Route, attempt: AsyncExitStack, *, capture: bool
    ) -> tuple[aiohttp.ClientResponse, bytes]:
        url = route.deployment.url + self._path
        body = engine_body(request, route.engine_model, capture=capture)
        response = await attempt.enter_async_context(self._upstream.post(url, body))
        if request.stream and response.status == 200:
            return response, b""
        try:
            return response, await response.read()
        except aiohttp.ServerTimeoutError as error:
            raise self._upstream.too_slow(error) from error
        except (aiohttp.ClientError, OSError) as error:
            raise Unreachable(f"{url} broke off its answer: {type(error).__name__}") from error


def _names_injected_field(body: bytes) -> bool:
    """Whether an engine's refusal is about something that the gateway added."""
    return any(name.encode() in body for name in INJECTED_FIELDS)
