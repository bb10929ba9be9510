"""The outermost layer around any application."""

import structlog
from prometheus_client import CollectorRegistry

from gateway.metrics import GatewayMetrics
from gateway.middleware import GatewayMiddleware


async def test_the_request_id_is_in_every_log_line_of_the_request():
    """While a request is answered structlog's context names it, and no longer."""
    seen = []

    async def app(scope, receive, send):
        seen.append(structlog.contextvars.get_contextvars().get("request_id"))
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def nothing(*_):
        return {"type": "http.disconnect"}

    middleware = GatewayMiddleware(app, metrics=GatewayMetrics(CollectorRegistry()), hot_paths={})
    scope = {"type": "http", "method": "GET", "path": "/", "headers": [(b"x-request-id", b"mine")]}
    await middleware(scope, nothing, nothing)
    assert seen == ["mine"]
    assert "request_id" not in structlog.contextvars.get_contextvars()
