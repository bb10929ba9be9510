"""Requests that find all replicas of a full-weight Policy closed for a swap wait for it, rather than fail."""

import asyncio
from collections.abc import Callable

from core.errors import EngineUnavailable, VersionNotServed
from core.variant import ModelName
from gateway.metrics import GatewayMetrics
from gateway.routing import Routing
from serving.pool import Route

_LOOK_AGAIN_SECONDS = 0.02


class SwapWait:
    """Waits while, and only while, a replica that could answer is having its weights replaced."""

    def __init__(self, *, routing: Routing, metrics: GatewayMetrics, longest_seconds: float) -> None:
        self._routing = routing
        self._metrics = metrics
        self._longest_seconds = longest_seconds

    async def route(self, model: ModelName, find: Callable[[], Route]) -> Route:
        """What ``find`` gives, at once or when the swap has ended. Raises what ``find`` raises last."""
        try:
            return find()
        except (EngineUnavailable, VersionNotServed):
            if not self._routing.swapping(model):
                raise
        self._metrics.swap_waits.inc()
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._longest_seconds
        while True:
            await asyncio.sleep(_LOOK_AGAIN_SECONDS)
            try:
                return find()
            except (EngineUnavailable, VersionNotServed):
                if loop.time() > deadline or not self._routing.swapping(model):
                    raise
