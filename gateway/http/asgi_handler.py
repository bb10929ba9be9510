"""Runs a hot route's handler as a plain ASGI application, for servers without the own protocol class."""

import asyncio
from collections.abc import Coroutine, Mapping
from typing import Any

import structlog

from core import ids
from gateway import asgi
from gateway.asgi import ClientWatch
from gateway.errors import JSON_HEADER, BodyTooLarge, encode, error_body, error_headers, internal_error_body
from gateway.http.base import ClientLeft, HotHandler, RawHeaders, Watcher

log = structlog.get_logger(__name__)


class AsgiRequest:
    """An IncomingRequest over ASGI's ``send``."""

    def __init__(self, scope: asgi.Scope, body: bytes, watch: ClientWatch, send: asgi.Send) -> None:
        self.path: str = scope["path"]
        self.headers: Mapping[bytes, bytes] = asgi.header_map(scope)
        self.body = body
        self.started = False
        self.complete = False
        self._watch = watch
        self._send = send
        self._messages: list[asgi.Message] = []

    @property
    def left(self) -> bool:
        """Whether the client has closed its connection."""
        return self._watch.left

    @property
    def slow(self) -> bool:
        """Never: ``drain`` says."""
        return False

    def watch(self, watcher: Watcher | None) -> bool:
        """ASGI sends by coroutines, which only a task can run."""
        return False

    def go_on(self, work: Coroutine[Any, Any, None]) -> None:
        """Nobody watches here."""
        raise NotImplementedError

    def answer(self, status: int, headers: RawHeaders, body: bytes) -> None:
        """Send a whole answer with its length."""
        self.start(status, [*headers, (b"content-length", b"%d" % len(body))])
        self._messages.append({"type": "http.response.body", "body": body})
        self._finish()

    def start(self, status: int, headers: RawHeaders) -> None:
        """Begin an answer."""
        if self.started:
            raise RuntimeError("an answer has been started already")
        if any(b"\n" in name + value or b"\r" in name + value for name, value in headers):
            raise ValueError("a header of the answer holds a line break")
        self.started = True
        self._messages.append({"type": "http.response.start", "status": status, "headers": list(headers)})

    def write(self, data: bytes) -> None:
        """Send a part."""
        if not self.left and data:
            self._expect_open()
            self._messages.append({"type": "http.response.body", "body": data, "more_body": True})

    def end(self) -> None:
        """Finish."""
        self._expect_open()
        self._messages.append({"type": "http.response.body", "body": b""})
        self._finish()

    async def drain(self) -> None:
        """Hand everything to the server, which waits while the client is slow."""
        messages, self._messages = self._messages, []
        for message in messages:
            await self._send(message)

    def _expect_open(self) -> None:
        if self.complete or not self.started:
            raise RuntimeError("no answer has been started")

    def _finish(self) -> None:
        self.complete = True
        self._watch.stop()


def asgi_app(handler: HotHandler) -> asgi.AsgiApp:
    """The handler as an ASGI application for HTTP scopes.

    The server puts a failed stream to an end: it closes the connection of an application that raises.
    """

    async def app(scope: asgi.Scope, receive: asgi.Receive, send: asgi.Send) -> None:
        try:
            body = await asgi.read_body(asgi.bounded(scope, receive))
        except BodyTooLarge as error:
            head = [*error_headers(error), (b"connection", b"close")]
            await asgi.send_answer(send, error.status, head, encode(error_body(error)))
            return
        except ClientLeft:
            return
        watch = ClientWatch(receive)
        request = AsgiRequest(scope, body, watch, send)
        try:
            with watch:
                await _run(handler, request)
        except (ClientLeft, asyncio.CancelledError):
            if not watch.left:
                raise
        else:
            await request.drain()

    return app


async def _run(handler: HotHandler, request: AsgiRequest) -> None:
    try:
        work = handler(request)
        if work is not None:
            await work
        if not request.complete and not request.left:
            raise RuntimeError("the handler ended without a whole answer")
    except ClientLeft:
        raise
    except Exception as error:
        request_id = ids.new_id(ids.REQUEST)
        log.error("request_crashed", request_id=request_id, path=request.path, error=repr(error), exc_info=error)
        if request.started:
            raise
        head = [JSON_HEADER, (b"x-request-id", request_id.encode())]
        request.answer(500, head, encode(internal_error_body(request_id)))
