"""One request on a hot route, answered straight into the connection's transport."""

import asyncio
from collections.abc import Mapping
from typing import Final, Protocol

from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from core.errors import HoneError
from gateway.http.base import HotHandler, RawHeaders

_CLOSE: Final = b"connection: close\r\n"
_BODILESS: Final = frozenset({204, 304})


class Connection(Protocol):
    """What a request needs of its connection."""

    transport: asyncio.Transport
    flow: FlowControl

    def default_head(self) -> bytes:
        """Header lines that every answer carries."""

    def on_response_complete(self) -> None:
        """The next request may be answered."""


class HotRequest:
    """Implements ``IncomingRequest``; also stands where uvicorn expects its own cycle object.

    ``start`` and ``answer`` raise ValueError for a line break in a header and RuntimeError when an answer has
    already begun. After the client has left, nothing is sent and nothing fails.
    """

    __slots__ = (
        "_connection",
        "body",
        "chunked",
        "expects_continue",
        "handler",
        "headers",
        "keep_alive",
        "left",
        "parts",
        "path",
        "received",
        "refusal",
        "response_complete",
        "size",
        "started",
        "task",
    )

    def __init__(
        self,
        connection: Connection,
        *,
        handler: HotHandler | None = None,
        path: str = "",
        headers: Mapping[bytes, bytes],
        keep_alive: bool = False,
        chunked: bool = True,
    ) -> None:
        self._connection = connection
        self.handler = handler
        self.path = path
        self.headers = headers
        self.keep_alive = keep_alive
        self.chunked = chunked
        """False for HTTP/1.0, where only the connection's end delimits an answer without a length."""
        self.body = b""
        self.parts: list[bytes] = []
        self.size = 0
        self.received = False
        self.expects_continue = False
        self.refusal: HoneError | None = None
        """Why the server answers this request itself."""
        self.left = False
        self.started = False
        self.response_complete = False
        self.task: asyncio.Task[None] | None = None

    def answer(self, status: int, headers: RawHeaders, body: bytes) -> None:
        """Send a whole answer with its length in one write."""
        if status in _BODILESS:
            head = self._head(status, headers, b"")
            body = b""
        else:
            head = self._head(status, headers, b"content-length: %d\r\n" % len(body))
        if not self.left:
            self._connection.transport.write(head + body)
        self._complete()

    def start(self, status: int, headers: RawHeaders) -> None:
        """Begin an answer whose length is not known: chunks, or until the end of the connection for HTTP/1.0."""
        if not self.chunked:
            self.keep_alive = False
        head = self._head(status, headers, b"transfer-encoding: chunked\r\n" if self.chunked else b"")
        if not self.left:
            self._connection.transport.write(head)

    def write(self, data: bytes) -> None:
        """Send a part of an answer that ``start`` began."""
        if self.left or not data:
            return
        if self.response_complete or not self.started:
            raise RuntimeError("no answer has been started")
        self._connection.transport.write(b"%x\r\n%b\r\n" % (len(data), data) if self.chunked else data)

    def end(self) -> None:
        """Finish an answer that ``start`` began."""
        if self.response_complete or not self.started:
            raise RuntimeError("no answer has been started")
        if self.chunked and not self.left:
            self._connection.transport.write(b"0\r\n\r\n")
        self._complete()

    async def drain(self) -> None:
        """Wait while the client reads too slowly."""
        flow = self._connection.flow
        if flow.write_paused and not self.left:
            await flow.drain()

    def leave(self) -> None:
        """The client has closed its connection: stop the handler unless its answer is complete."""
        if self.response_complete:
            return
        self.left = True
        if self.task is not None:
            self.task.cancel()

    def break_off(self) -> None:
        """Close the connection without the end mark, so that the client sees an incomplete answer."""
        self.keep_alive = False
        self._connection.transport.close()

    def _head(self, status: int, headers: RawHeaders, framing: bytes) -> bytes:
        if self.started:
            raise RuntimeError("an answer has been started already")
        lines = [b"%b: %b\r\n" % header for header in headers]
        own = b"".join(lines)
        if own.count(b"\n") != len(lines) or own.count(b"\r") != len(lines):
            raise ValueError("a header of the answer holds a line break")
        self.started = True
        close = b"" if self.keep_alive else _CLOSE
        return b"".join((STATUS_LINE[status], self._connection.default_head(), own, framing, close, b"\r\n"))

    def _complete(self) -> None:
        self.response_complete = True
        if self.left:
            return
        if not self.keep_alive and self.refusal is None:
            self._connection.transport.close()
        self._connection.on_response_complete()
