"""The outermost layer, in pure ASGI: request ids, metrics, the last catch, and the way past it for hot routes."""

import re
import time
from collections.abc import Mapping

import structlog

from core import ids
from gateway.asgi import AsgiApp, Message, Receive, Scope, Send, bounded, send_answer
from gateway.errors import JSON_HEADER, REQUEST_ID, encode, internal_error_body
from gateway.metrics import GatewayMetrics
from gateway.request_headers import decent_request_id

log = structlog.get_logger(__name__)

MODEL_LABEL = "hone_model"
"""Key of the resolved Policy or Base name in an ASGI scope."""
SHOWN_STATUS = "hone_shown_status"
"""Key of the status that is counted instead of the one that was sent (see ``gateway/metrics.py``)."""
_UNMATCHED = "unmatched"
_PARAMETER = re.compile(r"\{(\w+)(?::\w+)?\}")


class GatewayMiddleware:
    """Wraps the whole application."""

    def __init__(
        self, app: AsgiApp, *, metrics: GatewayMetrics, hot_paths: Mapping[tuple[str, str], AsgiApp]
    ) -> None:
        self._app = app
        self._metrics = metrics
        self._hot_paths = hot_paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request; other scopes pass."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        hot = self._hot_paths.get((scope["method"], scope["path"]))
        if hot is not None:
            await hot(scope, receive, send)
            return
        request_id = _request_id(scope)
        scope[REQUEST_ID] = request_id
        with structlog.contextvars.bound_contextvars(request_id=request_id):
            await self._answer(scope, bounded(scope, receive), send, request_id)

    async def _answer(self, scope: Scope, receive: Receive, send: Send, request_id: str) -> None:
        started = time.perf_counter()
        header = (b"x-request-id", request_id.encode())
        status = 0

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message["headers"], header]
            await send(message)

        try:
            await self._app(scope, receive, send_with_id)
        except Exception as error:
            log.exception("request_crashed", request_id=request_id, path=scope["path"], error=repr(error))
            if status == 0:
                await send_answer(send_with_id, 500, [JSON_HEADER], encode(internal_error_body(request_id)))
        finally:
            route = _route_template(scope)
            seconds = time.perf_counter() - started
            self._metrics.request_done(route, scope.get(MODEL_LABEL, ""), scope.get(SHOWN_STATUS, status), seconds)


def _request_id(scope: Scope) -> str:
    sent = (decent_request_id(value) for name, value in scope["headers"] if name == b"x-request-id")
    return next((text for text in sent if text is not None), None) or ids.new_id(ids.REQUEST)


def _route_template(scope: Scope) -> str:
    """``/admin/v1/policies/{name}``: the matched route's own template, after the prefix that its routers add."""
    leaf = getattr(scope.get("route"), "path", None)
    if leaf is None:
        return _UNMATCHED
    parameters = scope.get("path_params", {})
    concrete = _PARAMETER.sub(lambda found: str(parameters.get(found[1], "")), leaf)
    path = scope["path"]
    return str(path[: len(path) - len(concrete)] + leaf if path.endswith(concrete) else leaf)
