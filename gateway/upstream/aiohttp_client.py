"""The HTTP client on aiohttp: the plain second implementation of ``Upstream``."""

import asyncio
from collections.abc import Mapping
from types import TracebackType
from typing import Self

import aiohttp
from aiohttp.http_exceptions import BadStatusLine

from core.config.schema import HoneConfig
from core.errors import EngineError, EngineUnavailable
from gateway.upstream.base import NOT_HERE, BegunResponse, Unreachable, too_slow

_CONNECT_SECONDS = 10.0
_KEEP_ALIVE_SECONDS = 30.0
_GRACE_SECONDS = 0.5
_READ_BUFFER_BYTES = 2**18
_LARGEST_LINE_BYTES = 2**16
_HEADERS = {"content-type": "application/json", "accept-encoding": "identity"}


class AiohttpResponse:
    """An answer of aiohttp's; implements ``UpstreamResponse``."""

    def __init__(self, response: aiohttp.ClientResponse, *, timeout_seconds: float) -> None:
        self._response = response
        self._timeout_seconds = timeout_seconds
        self._closed = False
        self.status = response.status
        self.headers: Mapping[bytes, bytes] = {name.lower(): value for name, value in response.raw_headers}

    async def read(self) -> bytes:
        """The whole body; empty after ``close``."""
        pieces = []
        try:
            while piece := await self._piece():
                pieces.append(piece)
        except (aiohttp.ClientError, OSError) as error:
            raise Unreachable(f"{self._response.url} broke off its answer: {type(error).__name__}") from error
        return b"".join(pieces)

    async def next(self) -> bytes:
        """The body bytes that have arrived; empty at the end and after ``close``."""
        try:
            return await self._piece()
        except (aiohttp.ClientError, OSError) as error:
            raise EngineError(
                f"the engine broke off its answer: {type(error).__name__}", hint="send the request again"
            ) from error

    async def _piece(self) -> bytes:
        if self._closed:
            return b""
        try:
            # aiohttp's own read timeout ends with the connection, but a body that its parser refused has no end.
            async with asyncio.timeout(self._timeout_seconds + _GRACE_SECONDS):
                return await self._response.content.readany()
        except TimeoutError as error:
            raise too_slow(self._timeout_seconds) from error

    def close(self) -> None:
        """Give the connection back, or close it."""
        if self._closed:
            return
        self._closed = True
        if self._response.content.is_eof():
            self._response.release()
        else:
            self._response.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class AiohttpUpstream:
    """Implements ``Upstream`` by an ``aiohttp.ClientSession``."""

    def __init__(self, *, config: HoneConfig) -> None:
        self._timeout_seconds = config.gateway.request_timeout_seconds
        self._client: aiohttp.ClientSession | None = None

    async def start(self) -> None:
        """Open the pool."""
        self._client = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                limit=0, keepalive_timeout=_KEEP_ALIVE_SECONDS, ttl_dns_cache=60, enable_cleanup_closed=False
            ),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_SECONDS, sock_read=self._timeout_seconds),
            headers=_HEADERS,
            auto_decompress=False,
            cookie_jar=aiohttp.DummyCookieJar(),
            read_bufsize=_READ_BUFFER_BYTES,
            max_line_size=_LARGEST_LINE_BYTES,
            max_field_size=_LARGEST_LINE_BYTES,
        )

    async def stop(self) -> None:
        """Close all connections."""
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    def begin(self, method: bytes, url: str, body: bytes) -> BegunResponse | None:
        """Never: aiohttp sends in a task of its own."""
        return None

    async def send(
        self,
        method: bytes,
        url: str,
        body: bytes = b"",
        headers: tuple[tuple[bytes, bytes], ...] = (),
        begun: BegunResponse | None = None,
    ) -> AiohttpResponse:
        """Send a request and wait for the head of its answer."""
        more = {name.decode("latin-1"): value.decode("latin-1") for name, value in headers}
        for fresh in (False, True):
            response = await self._try(method.decode(), url, body, more, last=fresh)
            if response is not None:
                break
        else:
            raise Unreachable(f"{url} closed the connection")
        if response.status in NOT_HERE:
            response.close()
            raise Unreachable(f"{url} answered {response.status}")
        return AiohttpResponse(response, timeout_seconds=self._timeout_seconds)

    async def _try(
        self, method: str, url: str, body: bytes, headers: dict[str, str], *, last: bool
    ) -> aiohttp.ClientResponse | None:
        """The answer, or None when the connection closed before one and another attempt is left."""
        if self._client is None:
            raise EngineUnavailable("the gateway is not started", hint="try again in a few seconds")
        try:
            return await self._client.request(method, url, data=body or None, headers=headers, allow_redirects=False)
        except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError) as error:
            # A kept-alive connection may be closed by the engine while we write to it; try once more.
            if last or isinstance(error, aiohttp.ClientConnectorError):
                raise Unreachable(f"{url}: {type(error).__name__}: {error}") from error
            return None
        except aiohttp.ServerTimeoutError as error:
            if isinstance(error, aiohttp.ConnectionTimeoutError):
                raise Unreachable(f"{url} accepts no connection") from error
            raise too_slow(self._timeout_seconds) from error
        except aiohttp.ClientResponseError as error:
            if _has_no_status_line(error):
                raise Unreachable(f"{url} does not speak HTTP: {error.message}") from error
            raise EngineError(f"the engine's answer is not HTTP: {error.message}") from error
        except (aiohttp.ClientError, OSError) as error:
            raise Unreachable(f"{url}: {type(error).__name__}: {error}") from error
        except RuntimeError as error:
            # aiohttp's word for a session that was closed under a request; anything else is a fault.
            if self._client is not None:
                raise
            raise Unreachable(f"{url}: the gateway stops") from error


def _has_no_status_line(error: BaseException | None) -> bool:
    while error is not None:
        if isinstance(error, BadStatusLine):
            return True
        error = error.__cause__
    return False
