"""A response that is worked out while it is sent, in one task that ends when the client leaves."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeAlias

import msgspec
import structlog
from fastapi import Request, Response
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

from core.errors import HoneError
from gateway.anthropic_api.errors import (
    headers_of,
    internal_message_error,
    log_failure,
    message_error,
    status_of,
)
from gateway.anthropic_api.fields import Json
from gateway.anthropic_api.stream import event
from gateway.asgi import until_disconnected
from gateway.errors import JSON_HEADER, request_id_of
from gateway.http.base import RawHeader
from gateway.metrics import CLIENT_LEFT_STATUS, STREAM_BROKEN_STATUS
from gateway.middleware import SHOWN_STATUS

log = structlog.get_logger(__name__)


class Outgoing:
    """The answer to one request: whole, or a start and parts."""

    def __init__(self, send: Send, request_id: str) -> None:
        self.request_id = request_id
        self.started = False
        self.ended = False
        self._send = send

    async def whole(self, status: int, headers: list[RawHeader], body: Json) -> None:
        """Send a JSON body with its length."""
        data = msgspec.json.encode(body)
        await self.start(status, [*headers, JSON_HEADER, (b"content-length", str(len(data)).encode())])
        self.ended = True
        await self._send({"type": "http.response.body", "body": data})

    async def start(self, status: int, headers: list[RawHeader]) -> None:
        """Begin an answer whose length is not known."""
        self.started = True
        named = [*headers, (b"request-id", self.request_id.encode())]
        await self._send({"type": "http.response.start", "status": status, "headers": named})

    async def write(self, data: bytes) -> None:
        """Send a part; waits while the client reads too slowly."""
        await self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def end(self) -> None:
        """Finish an answer that ``start`` began."""
        self.ended = True
        await self._send({"type": "http.response.body", "body": b""})


Work: TypeAlias = Callable[[Request, bytes, Outgoing], Awaitable[None]]


class WorkedOut(Response):
    """Runs ``work``; its errors become Anthropic's, before the first byte as a body and after it as an event."""

    def __init__(self, work: Work) -> None:
        super().__init__()
        self._work = work

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, and stop all work when the client closes its connection."""
        out = Outgoing(send, request_id_of(scope))
        request = Request(scope, receive)
        try:
            body = await request.body()
        except ClientDisconnect:
            scope[SHOWN_STATUS] = CLIENT_LEFT_STATUS
            return
        except HoneError as error:
            await _fail(out, scope, error)
            return
        worker = asyncio.create_task(self._run(request, body, out))
        watcher = asyncio.create_task(until_disconnected(receive))
        try:
            await asyncio.wait({worker, watcher}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            if not worker.done() and not out.ended:
                scope[SHOWN_STATUS] = CLIENT_LEFT_STATUS
                worker.cancel()
            watcher.cancel()
            await asyncio.wait({worker, watcher})
        if not worker.cancelled():
            worker.result()

    async def _run(self, request: Request, body: bytes, out: Outgoing) -> None:
        try:
            await self._work(request, body, out)
        except HoneError as error:
            await _fail(out, request.scope, error)
        except Exception:
            log.exception("request_crashed", request_id=out.request_id, path=request.url.path)
            if out.started:
                raise
            await out.whole(500, [], internal_message_error(out.request_id))


async def _fail(out: Outgoing, scope: Scope, error: HoneError) -> None:
    log_failure(error, out.request_id)
    body = message_error(error, out.request_id)
    if not out.started:
        headers = [header for header in headers_of(error) if header != JSON_HEADER]
        await out.whole(status_of(error), headers, body)
    elif not out.ended:
        scope[SHOWN_STATUS] = STREAM_BROKEN_STATUS
        await out.write(event(body))
        await out.end()
