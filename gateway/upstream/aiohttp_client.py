"""The HTTP client that requests reach engines by: one pool of kept-alive connections per process."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp

from core.config.schema import HoneConfig
from core.errors import EngineError, EngineUnavailable
from gateway.upstream.base import NOT_HERE, Unreachable

_CONNECT_SECONDS = 10.0
_KEEP_ALIVE_SECONDS = 30.0
_READ_BUFFER_BYTES = 2**18
_LARGEST_LINE_BYTES = 2**16
_HEADERS = {"content-type": "application/json", "accept-encoding": "identity"}


class Upstream:
    """Sends inference requests to engine replicas."""

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
        if self._client is not None:
            await self._client.close()
            self._client = None

    @asynccontextmanager
    async def post(self, url: str, body: bytes) -> AsyncIterator[aiohttp.ClientResponse]:
        """The engine's response, its body not read yet; leaving the block early closes the connection.

        Raises Unreachable when nothing was answered, and EngineError when the engine took too long.
        """
        response = await self._open(url, body)
        try:
            yield response
        finally:
            # An unread rest means that the client left: only a closed connection stops the engine's sampling.
            if response.content.at_eof():
                response.release()
            else:
                response.close()

    async def _open(self, url: str, body: bytes) -> aiohttp.ClientResponse:
        if self._client is None:
            raise EngineUnavailable("the gateway is not started")
        for fresh in (False, True):
            try:
                response = await self._client.post(url, data=body)
            except aiohttp.ServerDisconnectedError as error:
                # A kept-alive connection may be closed by the engine while we write to it; try once more.
                if fresh:
                    raise Unreachable(f"{url} closed the connection") from error
            except aiohttp.ServerTimeoutError as error:
                if isinstance(error, aiohttp.ConnectionTimeoutError):
                    raise Unreachable(f"{url} accepts no connection") from error
                raise self.too_slow(error) from error
            except (aiohttp.ClientError, OSError) as error:
                raise Unreachable(f"{url}: {type(error).__name__}: {error}") from error
            else:
                if response.status in NOT_HERE:
                    response.close()
                    raise Unreachable(f"{url} answered {response.status}")
                return response
        raise Unreachable(f"{url} closed the connection")

    def too_slow(self, error: Exception) -> EngineError:
        """The error for an engine that sent nothing for the configured time."""
        return EngineError(
            f"the engine sent nothing for {self._timeout_seconds:g} s",
            hint="raise gateway.request_timeout_seconds or ask for fewer tokens",
        )
