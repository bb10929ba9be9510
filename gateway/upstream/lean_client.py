"""The HTTP client of the hot path: a pool of kept-alive connections on asyncio's own transports."""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Callable, Coroutine, Mapping
from functools import lru_cache
from math import ceil
from types import TracebackType
from typing import Any, Final, NamedTuple, Self
from urllib.parse import urlsplit

import structlog

from core.config.schema import HoneConfig
from core.errors import EngineUnavailable
from gateway.upstream.base import NOT_HERE, BegunResponse, Unreachable
from gateway.upstream.connection import EngineConnection, headers_in

log = structlog.get_logger(__name__)

CONNECT_SECONDS: Final = 10.0
KEEP_ALIVE_SECONDS: Final = 30.0
"""A connection without a request is closed after this time."""
_SWEEP_SECONDS: Final = 0.5
_SWEEPS_PER_TIMEOUT: Final = 4
_Key = tuple[str, int, bool]


class Target(NamedTuple):
    """Where a URL leads, and the bytes of a request's head that depend on it alone."""

    key: _Key
    path: bytes
    host: bytes


@lru_cache(maxsize=4096)
def target_of(url: str) -> Target:
    """The target of an absolute http or https URL. Raises Unreachable for anything else."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise Unreachable(f"{url!r} is no HTTP address") from error
    if parts.scheme not in ("http", "https") or not parts.hostname or not url.isascii() or not url.isprintable():
        raise Unreachable(f"{url!r} is no HTTP address")
    secure = parts.scheme == "https"
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    if " " in path:
        raise Unreachable(f"{url!r} is no HTTP address")
    host = parts.netloc.rpartition("@")[2]
    return Target((parts.hostname, port or (443 if secure else 80), secure), path.encode(), host.encode())


@lru_cache(maxsize=4096)
def head_of(method: bytes, url: str, headers: tuple[tuple[bytes, bytes], ...]) -> tuple[_Key, bytes]:
    """Where a request goes, and its head (RFC 9112) but for the content-length and the empty line.

    Raises Unreachable for what is no address and ValueError for a line break in a header.
    """
    target = target_of(url)
    lines = [b"%b %b HTTP/1.1" % (method, target.path), b"host: " + target.host, b"accept-encoding: identity"]
    lines += map(b": ".join, headers)
    text = b"".join(lines)
    if method == b"POST" and not any(name.lower() == b"content-type" for name, _ in headers):
        lines.append(b"content-type: application/json")
    if any(sign in text for sign in (b"\r", b"\n", b"\0")):
        raise ValueError("a header holds a line break")
    return target.key, b"\r\n".join(lines)


class LeanResponse:
    """An answer over an EngineConnection; implements ``UpstreamResponse`` and ``BegunResponse``."""

    __slots__ = ("_connection", "_head_data", "_headers", "_status", "_upstream")

    def __init__(self, connection: EngineConnection, upstream: "LeanUpstream") -> None:
        self._connection: EngineConnection | None = connection
        self._upstream = upstream
        self._head_data = connection.head_data
        self._headers: Mapping[bytes, bytes] | None = None
        self._status = 0

    @property
    def status(self) -> int:
        """HTTP status; 0 while it is not known."""
        connection = self._connection
        return self._status if connection is None else connection.status

    @property
    def headers(self) -> Mapping[bytes, bytes]:
        """Lower-case names; of a repeated header the last."""
        if self._headers is None:
            self._headers = headers_in(self._head_data)
            self._head_data = []
        return self._headers

    def listen(self, listener: Callable[[], None] | None, *, whole: bool = False) -> None:
        """See ``BegunResponse``."""
        if self._connection is not None:
            self._connection.listen(listener, whole=whole)

    @property
    def unread(self) -> int:
        """See ``BegunResponse``."""
        return 0 if self._connection is None else self._connection.unread

    @property
    def ended(self) -> bool:
        """See ``BegunResponse``."""
        return self._connection is None or self._connection.ended

    def take(self) -> bytes | None:
        """See ``BegunResponse``."""
        connection = self._connection
        return b"" if connection is None else connection.take()

    def hand_over(self) -> EngineConnection | None:
        """The connection, for another response; this one is of no further use."""
        connection, self._connection = self._connection, None
        if connection is not None:
            self._status = connection.status
        return connection

    # No coroutines of their own: a stream asks for its next part very often.

    def read(self) -> Coroutine[Any, Any, bytes]:
        """The whole body; empty after ``close``."""
        connection = self._connection
        return _nothing() if connection is None else connection.whole()

    def next(self) -> Coroutine[Any, Any, bytes]:
        """The body bytes that have arrived; empty at the end and after ``close``."""
        connection = self._connection
        return _nothing() if connection is None else connection.part()

    def close(self) -> None:
        """Give the connection back, or close it."""
        connection = self.hand_over()
        if connection is not None:
            self._upstream.take_back(connection)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


async def _nothing() -> bytes:
    return b""


class LeanUpstream:
    """Implements ``Upstream``; one sweep every half second stands for all timers."""

    def __init__(self, *, config: HoneConfig) -> None:
        self._timeout_seconds = config.gateway.request_timeout_seconds
        self._sweep_seconds = min(_SWEEP_SECONDS, self._timeout_seconds / _SWEEPS_PER_TIMEOUT)
        self._most_silent_sweeps = ceil(self._timeout_seconds / self._sweep_seconds)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._sweep_timer: asyncio.TimerHandle | None = None
        self._connections: set[EngineConnection] = set()
        self._idle: dict[_Key, list[EngineConnection]] = {}
        self._tls: ssl.SSLContext | None = None

    @property
    def open_connections(self) -> int:
        """Connections, busy and kept."""
        return len(self._connections)

    async def start(self) -> None:
        """Open the pool."""
        self._loop = asyncio.get_running_loop()
        self._sweep_timer = self._loop.call_later(self._sweep_seconds, self._sweep)

    async def stop(self) -> None:
        """Close all connections."""
        self._loop = None
        if self._sweep_timer is not None:
            self._sweep_timer.cancel()
            self._sweep_timer = None
        for connection in list(self._connections):
            connection.abort()
        self._idle.clear()
        # Transports report their end in the next turn of the loop.
        await asyncio.sleep(0)

    def begin(self, method: bytes, url: str, body: bytes) -> LeanResponse | None:
        """See ``Upstream``."""
        key, head = head_of(method, url, ())
        connection = self._kept(key)
        if connection is None:
            return None
        connection.begin(b"%b\r\ncontent-length: %d\r\n\r\n%b" % (head, len(body), body))
        return LeanResponse(connection, self)

    async def send(
        self,
        method: bytes,
        url: str,
        body: bytes = b"",
        headers: tuple[tuple[bytes, bytes], ...] = (),
        begun: BegunResponse | None = None,
    ) -> LeanResponse:
        """Send a request and wait for the head of its answer."""
        key, head = head_of(method, url, headers)
        if body or method == b"POST":
            request = b"%b\r\ncontent-length: %d\r\n\r\n%b" % (head, len(body), body)
        else:
            request = head + b"\r\n\r\n"
        connection = begun.hand_over() if isinstance(begun, LeanResponse) else None
        waiting = kept = connection is not None
        if connection is None:
            connection = self._kept(key)
            kept = connection is not None
        while True:
            if connection is None:
                connection = await self._connect(key)
            try:
                if not waiting:
                    connection.begin(request, headless=method == b"HEAD")
                await connection.head()
                if connection.status in NOT_HERE:
                    raise Unreachable(f"{url} answered {connection.status}")
                return LeanResponse(connection, self)
            except Unreachable:
                connection.abort()
                # An engine may close a kept connection while we write to it; that says nothing about the engine.
                if not kept or connection.touched or self._loop is None:
                    raise
            except BaseException:
                connection.abort()
                raise
            connection, kept, waiting = None, False, False

    def take_back(self, connection: EngineConnection) -> None:
        """Keep a connection whose exchange has ended, close any other."""
        if self._loop is None or not connection.keep():
            connection.abort()
            return
        idle = self._idle.get(connection.key)
        if idle is None:
            idle = self._idle[connection.key] = []
        idle.append(connection)

    def _kept(self, key: _Key) -> EngineConnection | None:
        idle = self._idle.get(key)
        while idle:
            connection = idle.pop()
            if connection.usable:
                return connection
        return None

    async def _connect(self, key: _Key) -> EngineConnection:
        loop = self._loop
        if loop is None:
            raise EngineUnavailable("the gateway is not started", hint="try again in a few seconds")
        host, port, secure = key
        connection = EngineConnection(key, loop=loop, on_lost=self._forget)
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                transport, _ = await loop.create_connection(
                    lambda: connection, host, port, ssl=self._tls_context() if secure else None
                )
        except TimeoutError as error:
            connection.abort()
            raise Unreachable(f"{host}:{port} accepts no connection") from error
        except (OSError, ssl.SSLError) as error:
            connection.abort()
            raise Unreachable(f"{host}:{port}: {type(error).__name__}: {error}") from error
        except BaseException:
            connection.abort()
            raise
        self._connections.add(connection)
        opened = transport.get_extra_info("socket")
        if opened is not None:
            with contextlib.suppress(OSError):
                opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection

    def _tls_context(self) -> ssl.SSLContext:
        if self._tls is None:
            self._tls = ssl.create_default_context()
        return self._tls

    def _forget(self, connection: EngineConnection) -> None:
        self._connections.discard(connection)
        idle = self._idle.get(connection.key)
        if idle is None:
            return
        if connection in idle:
            idle.remove(connection)
        if not idle:
            del self._idle[connection.key]

    def _sweep(self) -> None:
        loop = self._loop
        if loop is None:
            return
        self._sweep_timer = loop.call_later(self._sweep_seconds, self._sweep)
        too_old = loop.time() - KEEP_ALIVE_SECONDS
        for connection in [one for idle in self._idle.values() for one in idle if one.kept_at < too_old]:
            self._idle[connection.key].remove(connection)
            connection.abort()
        for connection in list(self._connections):
            if connection.waiting:
                connection.silent_sweeps += 1
                if connection.silent_sweeps > self._most_silent_sweeps:
                    connection.time_out(self._timeout_seconds)
