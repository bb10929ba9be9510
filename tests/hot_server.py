"""A hot route under real uvicorn, with the own protocol class or as plain ASGI, and raw clients for it."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import uvicorn

from gateway.asgi import Receive, Scope, Send, read_body, send_answer
from gateway.http.asgi_handler import asgi_app
from gateway.http.base import HotHandler, IncomingRequest
from gateway.http.bound import hot_protocol

HOT = "/hot"
TEXT = (b"content-type", b"text/plain")


@dataclass
class HotServer:
    """A running server."""

    port: int
    uvicorn: uvicorn.Server
    task: asyncio.Task[None]

    async def connect(self, limit: int = 2**26, receive_bytes: int | None = None) -> "RawClient":
        """A raw connection; ``receive_bytes`` makes its receive buffer small."""
        raw = socket.socket()
        if receive_bytes is not None:
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        raw.setblocking(False)
        await asyncio.get_running_loop().sock_connect(raw, ("127.0.0.1", self.port))
        reader, writer = await asyncio.open_connection(sock=raw, limit=limit)
        return RawClient(reader, writer)

    async def stop(self) -> None:
        """Stop gracefully."""
        self.uvicorn.should_exit = True
        await self.task


@dataclass
class Answer:
    """A parsed answer."""

    status: int
    headers: dict[str, str]
    body: bytes
    chunks: list[bytes] = field(default_factory=list)


@dataclass
class RawClient:
    """Writes exact bytes and reads answers."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def send(self, data: bytes) -> None:
        """Write all of it."""
        self.writer.write(data)
        await self.writer.drain()

    async def head(self) -> tuple[int, dict[str, str]]:
        """The next status and headers."""
        lines = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        pairs = (line.partition(":") for line in lines[1:] if line)
        return int(lines[0].split(" ")[1]), {name.lower(): value.strip() for name, _, value in pairs}

    async def answer(self) -> Answer:
        """The next whole answer."""
        status, headers = await self.head()
        answer = Answer(status, headers, b"")
        if headers.get("transfer-encoding") == "chunked":
            while chunk := await self.chunk():
                answer.chunks.append(chunk)
            answer.body = b"".join(answer.chunks)
        elif "content-length" in headers:
            answer.body = await self.reader.readexactly(int(headers["content-length"]))
        elif status >= 200:
            answer.body = await self.reader.read()
        return answer

    async def chunk(self) -> bytes:
        """The next chunk; empty for the last."""
        size = int(await self.reader.readuntil(b"\r\n"), 16)
        return (await self.reader.readexactly(size + 2))[:-2]

    async def ask(self, data: bytes) -> Answer:
        """Write a request and read its answer."""
        await self.send(data)
        return await self.answer()

    async def at_end(self) -> bool:
        """Whether the server closes without a further byte."""
        try:
            return await self.reader.read(1) == b""
        except ConnectionError:
            return True

    def close(self) -> None:
        """Close at once."""
        self.writer.close()


def post(body: bytes = b"{}", *headers: str, path: str = HOT, version: str = "1.1") -> bytes:
    """A POST with its length."""
    lines = [f"POST {path} HTTP/{version}", "Host: test", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def post_chunked(*chunks: bytes, path: str = HOT) -> bytes:
    """A POST in chunks."""
    head = f"POST {path} HTTP/1.1\r\nHost: test\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
    return head + b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks) + b"0\r\n\r\n"


async def echo(request: IncomingRequest) -> None:
    """Answers with the request's body."""
    request.answer(200, [TEXT, (b"x-path", request.path.encode())], request.body)


@asynccontextmanager
async def hot_server(
    handler: HotHandler, *, own_protocol: bool, limits: dict[str, Any] | None = None, **options: Any
) -> AsyncIterator[HotServer]:
    """``handler`` as the hot route; ``/cold`` is an ASGI route that echoes method and body."""
    adapter = asgi_app(handler)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == HOT and scope["method"] == "POST":
            assert not own_protocol, "a hot request became ASGI"
            await adapter(scope, receive, send)
            return
        body = await read_body(receive)
        await send_answer(send, 200, [TEXT], b"cold " + scope["method"].encode() + b" " + body)

    http: Any = hot_protocol({HOT.encode(): handler}, **(limits or {})) if own_protocol else "httptools"
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    server = uvicorn.Server(
        uvicorn.Config(
            app,
            http=http,
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            backlog=4096,
            **({"timeout_graceful_shutdown": 10} | options),
        )
    )
    task = asyncio.create_task(server.serve(sockets=[listener]))
    while not server.started:
        await asyncio.sleep(0.01)
    running = HotServer(listener.getsockname()[1], server, task)
    try:
        yield running
    finally:
        await running.stop()


Serve = Callable[..., Any]
"""Opens a server: ``hot_server`` with ``own_protocol`` chosen."""
