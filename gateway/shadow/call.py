"""MirroredCall: sends a client's request to the candidate and gives its answer as a record that is never stored.

Nothing but the engine is reached: no limits, no usage, no Episode, no tools. A tool call in the answer is its end.
"""

import time
from dataclasses import dataclass

import msgspec
from msgspec import Raw

from core.config.shadow import ShadowSection
from core.errors import EngineError, HoneError, InvalidRequest, RateLimited
from core.experiment import Experiment
from core.variant import ModelName
from gateway.capture.record import CapturedCall
from gateway.inference.dispatch import ENGINE_PATHS
from gateway.inference.request import CapturePlan, InferenceRequest, engine_body
from gateway.inference.rewrite import engine_error_in
from gateway.inference.routes import refused_field
from gateway.inference.stream import DONE, EventSplitter, event_data
from gateway.routing import Routing
from gateway.shadow.eligible import Skip
from gateway.upstream.base import Upstream, UpstreamResponse
from gateway.upstream.errors import engine_error, stream_error
from serving.pool import Route

_OK = 200


@dataclass(frozen=True, slots=True)
class Mirrored:
    """A request that is to be mirrored, with what the client got."""

    experiment: Experiment
    request: InferenceRequest
    call: CapturedCall
    domain: str | None


class NotMirrored(Exception):
    """The request is left out after all. Never leaves this package."""

    def __init__(self, reason: Skip) -> None:
        super().__init__(reason.value)
        self.reason = reason


class MirroredCalls:
    """Asks candidates."""

    def __init__(self, *, limits: ShadowSection, routing: Routing, upstream: Upstream) -> None:
        self._limits = limits
        self._routing = routing
        self._upstream = upstream

    def route(self, experiment: Experiment) -> Route:
        """The candidate's least loaded replica; raises NotMirrored."""
        arm = experiment.arms[1]
        name = ModelName(name=experiment.policy, variant=arm.variant, version=arm.version)
        try:
            found = self._routing.resolve(name)
        except HoneError as error:
            raise NotMirrored(Skip.NOT_HELD) from error
        if found.version != arm.version or found.variant is not arm.variant:
            # A Variant falls back to the other one: then there is nothing to compare.
            raise NotMirrored(Skip.NOT_HELD)
        if self._routing.in_flight.load(found.deployment_id) >= self._limits.busy_requests:
            raise NotMirrored(Skip.BUSY)
        return found

    async def answer(self, mirrored: Mirrored, route: Route) -> CapturedCall:
        """The candidate's answer in the form of the client's. Raises NotMirrored, and how the candidate fails:
        Unreachable and HoneError."""
        request = self._limited(mirrored, route)
        if route.refused and refused_field(request, route) is not None:
            raise NotMirrored(Skip.REFUSED)
        began, clock = time.time(), time.perf_counter()
        with self._routing.in_flight.track(route.deployment_id):
            payloads, first = await self._ask(request, route)
        if route.weights is not None and self._weights_moved(mirrored.experiment, route):
            raise NotMirrored(Skip.SWAPPED)
        return msgspec.structs.replace(
            mirrored.call,
            payloads=payloads,
            version=route.version,
            variant=route.variant.value,
            deployment_id=route.deployment_id,
            started_at=began,
            total_seconds=time.perf_counter() - clock,
            first_token_seconds=None if first is None else first - clock,
            threads=[],
            version_spans={},
        )

    def _limited(self, mirrored: Mirrored, route: Route) -> InferenceRequest:
        """The request with a limit for its answer, where it has none and it is known what fits."""
        request = mirrored.request
        if request.answer_tokens or route.max_model_len is None:
            return request
        # The engine refuses to promise more than fits.
        most = min(self._limits.most_answer_tokens, route.max_model_len - mirrored.call.prompt_tokens)
        if most < 1:
            raise NotMirrored(Skip.TOO_LONG)
        return msgspec.structs.replace(request, fields=request.fields | {"max_tokens": Raw(b"%d" % most)})

    async def _ask(self, request: InferenceRequest, route: Route) -> tuple[list[bytes], float | None]:
        plan = CapturePlan(token_ids=False, logprobs=False, usage=request.plan.usage)
        body = engine_body(request, Raw(msgspec.json.encode(route.engine_model)), plan)
        url = route.deployment.url + ENGINE_PATHS[request.endpoint]
        try:
            response = await self._upstream.send(b"POST", url, body)
            async with response:
                if response.status != _OK:
                    raise engine_error(response.status, await response.read(), response.headers)
                if request.stream:
                    return await _events(response)
                return [await response.read()], None
        except RateLimited as error:
            raise NotMirrored(Skip.BUSY) from error
        except InvalidRequest as error:
            raise NotMirrored(Skip.REFUSED) from error

    def _weights_moved(self, experiment: Experiment, route: Route) -> bool:
        try:
            return self.route(experiment).weights != route.weights
        except NotMirrored as error:
            return error.reason is not Skip.BUSY


async def _events(response: UpstreamResponse) -> tuple[list[bytes], float | None]:
    """The data of every event, and when the first one came. Raises what the engine puts in an end's place."""
    splitter, payloads, first = EventSplitter(), list[bytes](), None
    while data := await response.next():
        for event in splitter.feed(data):
            found = event_data(event)
            if found is None:
                continue
            if found == DONE:
                return payloads, first
            if engine_error_in(found) is not None:
                raise stream_error(found)
            first = time.perf_counter() if first is None else first
            payloads.append(found)
    raise EngineError("the engine ended the stream before its end mark")
