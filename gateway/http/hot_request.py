"""One request on a hot route, answered straight into the connection's transport."""

import asyncio
from collections.abc import Coroutine, Mapping
from typing import Any, Final, Protocol

from uvicorn.protocols.http import httptools_impl
from uvicorn.protocols.http.flow_control import FlowControl

from core.errors import HoneError
from gateway.http.base import HotHandler, RawHeaders, Watcher

_STATUS_LINES: Final = {status: line.rstrip(b"\r\n") for status, line in httptools_impl.STATUS_LINE.items()}
_CLOSE: Final = b"connection: close"
_CHUNKED: Final = b"transfer-encoding: chunked"
_BODILESS: Final = frozenset({204, 304})


class Connection(Protocol):
    """What a request needs of its connection."""

    transport: asyncio.Transport
    flow: FlowControl

    def default_head(self) -> bytes:
        """Header lines that every answer carries, each with the line break before it."""

    def on_response_complete(self) -> None:
        """The next request may be answered."""

    def run(self, request: "HotRequest", work: Coroutine[Any, Any, None]) -> None:
        """Run the rest of a request's handler as a task."""


class HotRequest:
    """Implements ``IncomingRequest``; also stands where uvicorn expects its own cycle object.

    ``start`` and ``answer`` raise ValueError for a line break in a header and RuntimeError when an answer has
    already begun. After the client has left, nothing is sent and nothing fails.
    """

    __slots__ = (
        "_connection",
        "body",
        "chunked",
        "handler",
        "headers",
        "keep_alive",
        "left",
        "path",
        "received",
        "refusal",
        "response_complete",
        "running",
        "started",
        "task",
        "watcher",
    )

    def __init__(
        self,
        connection: Connection,
        handler: HotHandler | None,
        path: str,
        headers: Mapping[bytes, bytes],
        *,
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
        self.received = False
        self.refusal: HoneError | None = None
        """Why the server answers this request itself."""
        self.left = False
        self.running = False
        """The handler has begun."""
        self.started = False
        self.response_complete = False
        self.task: asyncio.Task[None] | None = None
        self.watcher: Watcher | None = None

    @property
    def slow(self) -> bool:
        """See ``IncomingRequest``."""
        return self._connection.flow.write_paused

    def watch(self, watcher: Watcher | None) -> bool:
        """See ``IncomingRequest``."""
        self.watcher = watcher
        return True

    def go_on(self, work: Coroutine[Any, Any, None]) -> None:
        """See ``IncomingRequest``."""
        self._connection.run(self, work)

    def answer(self, status: int, headers: RawHeaders, body: bytes) -> None:
        """Send a whole answer with its length in one write."""
        lines = self._head(status, headers)
        if status in _BODILESS:
            lines += (b"", b"")
        else:
            lines += (b"content-length: %d" % len(body), b"", body)
        if not self.left:
            self._connection.transport.write(b"\r\n".join(lines))
        self._complete()

    def start(self, status: int, headers: RawHeaders) -> None:
        """Begin an answer whose length is not known: chunks, or until the end of the connection for HTTP/1.0."""
        if not self.chunked:
            self.keep_alive = False
        lines = self._head(status, headers)
        lines += (_CHUNKED, b"", b"") if self.chunked else (b"", b"")
        if not self.left:
            self._connection.transport.write(b"\r\n".join(lines))

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
        # A task that is cancelled before its first step does not run at all, not even to say that it has ended.
        if self.task is not None and self.running:
            self.task.cancel()
        elif self.watcher is not None:
            watcher, self.watcher, self.body = self.watcher, None, b""
            watcher.client_left()

    def break_off(self) -> None:
        """Close the connection without the end mark, so that the client sees an incomplete answer."""
        self.keep_alive = False
        self._connection.transport.close()

    def _head(self, status: int, headers: RawHeaders) -> list[bytes]:
        if self.started:
            raise RuntimeError("an answer has been started already")
        own = b"\r\n".join(map(b": ".join, headers))
        breaks = max(0, len(headers) - 1)
        if own.count(b"\n") != breaks or own.count(b"\r") != breaks:
            raise ValueError("a header of the answer holds a line break")
        self.started = True
        lines = [_STATUS_LINES[status] + self._connection.default_head()]
        if own:
            lines.append(own)
        if not self.keep_alive:
            lines.append(_CLOSE)
        return lines

    def _complete(self) -> None:
        self.response_complete = True
        self.watcher = None
        # An idle connection remembers its last request: that must not keep a large body in memory.
        self.body = b""
        if self.left:
            return
        if not self.keep_alive and self.refusal is None:
            self._connection.transport.close()
        self._connection.on_response_complete()
