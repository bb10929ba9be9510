"""An HTTP transport for servers that callers name: it connects only where it may, and reads only so much."""

import asyncio
import ipaddress
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

import httpx2

from gateway.hosted_tools.addresses import Server, is_public

Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
"""Host and port → addresses."""

_MOST_CONNECTIONS = 8


class Refused(Exception):
    """The server may not be called, or sends too much; the text may be shown to the caller."""


async def resolve(host: str, port: int) -> list[str]:
    """Every address of a host, as the system resolves it. Raises OSError."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(item[4][0]) for item in found))


class GuardedTransport(httpx2.AsyncBaseTransport):
    """Connects to one server by an address that was checked, so that no later look-up can give another one."""

    def __init__(self, server: Server, *, most_bytes: int, resolver: Resolve = resolve) -> None:
        """``most_bytes`` bounds each answer."""
        self._server = server
        self._most_bytes = most_bytes
        self._resolve = resolver
        self._inner = httpx2.AsyncHTTPTransport(
            retries=0, trust_env=False, limits=httpx2.Limits(max_connections=_MOST_CONNECTIONS)
        )

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send a request of the server's own origin. Raises Refused."""
        server, url = self._server, request.url
        default = {"http": 80, "https": 443}.get(url.scheme)
        if (url.scheme, url.host.rstrip("."), url.port or default) != (server.scheme, server.host, server.port):
            raise Refused("the server points to another server")
        request.headers["accept-encoding"] = "identity"
        address = await self._address()
        request.extensions = {**request.extensions, "sni_hostname": server.host}
        request.url = url.copy_with(host=address)
        try:
            response = await self._inner.handle_async_request(request)
        finally:
            request.url = url
        if response.headers.get("content-encoding", "identity") != "identity":
            await response.aclose()
            raise Refused("the server compresses its answer although it was asked not to")
        body = response.stream
        assert isinstance(body, httpx2.AsyncByteStream)
        return httpx2.Response(
            response.status_code,
            headers=response.headers,
            stream=_Bounded(body, self._most_bytes),
            extensions=response.extensions,
        )

    async def aclose(self) -> None:
        """Close all connections."""
        await self._inner.aclose()

    async def _address(self) -> str:
        server = self._server
        try:
            found = await self._resolve(server.host, server.port)
        except OSError as error:
            raise Refused(f"the name '{server.host}' cannot be resolved") from error
        if not found:
            raise Refused(f"the name '{server.host}' has no address")
        if not server.listed and not all(is_public(ipaddress.ip_address(item)) for item in found):
            raise Refused(f"'{server.host}' has an address that is not public")
        return found[0]


class _Bounded(httpx2.AsyncByteStream):
    """A body that ends in an error when it is too long."""

    def __init__(self, inner: httpx2.AsyncByteStream, most_bytes: int) -> None:
        self._inner = inner
        self._left = most_bytes

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for chunk in self._inner:
            self._left -= len(chunk)
            if self._left < 0:
                raise Refused("the server's answer is too long")
            yield chunk

    async def aclose(self) -> None:
        """Close the connection's answer."""
        await self._inner.aclose()
