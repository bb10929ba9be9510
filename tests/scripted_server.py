"""A server that sends exact bytes, for tests of HTTP clients."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
INTERIM = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n"
Script = Callable[["Peer"], Awaitable[None]]


@dataclass
class Peer:
    """The server's side of one connection."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    number: int
    """How many connections came before it."""
    requests: list[bytes] = field(default_factory=list)

    async def request(self) -> bytes:
        """The next whole request; empty when the client has closed."""
        try:
            head = await self.reader.readuntil(b"\r\n\r\n")
        except (asyncio.IncompleteReadError, ConnectionError):
            return b""
        length = 0
        for line in head.lower().split(b"\r\n"):
            if line.startswith(b"content-length:"):
                length = int(line.partition(b":")[2])
        whole = head + await self.reader.readexactly(length)
        self.requests.append(whole)
        return whole

    async def send(self, *pieces: bytes) -> None:
        """Send pieces, each in a segment of its own as far as the network allows."""
        for piece in pieces:
            self.writer.write(piece)
            await self.writer.drain()
            await asyncio.sleep(0.001)

    async def gone(self) -> None:
        """Wait until the client has closed the connection."""
        try:
            while await self.reader.read(65536):
                pass
        except ConnectionError:
            return


@dataclass
class Server:
    """A listening server and the connections that it has seen."""

    url: str
    peers: list[Peer] = field(default_factory=list)
    tasks: set[asyncio.Task[None]] = field(default_factory=set)


@asynccontextmanager
async def scripted(script: Script) -> AsyncIterator[Server]:
    """A server that runs ``script`` for every connection and closes it afterwards."""
    server = Server("")

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = Peer(reader, writer, len(server.peers))
        server.peers.append(peer)
        task = asyncio.current_task()
        if task is not None:
            server.tasks.add(task)
        try:
            await script(peer)
        except (ConnectionError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    listening = await asyncio.start_server(serve, "127.0.0.1", 0, limit=2**26)
    host, port = listening.sockets[0].getsockname()
    server.url = f"http://{host}:{port}/v1/chat/completions"
    try:
        yield server
    finally:
        for task in server.tasks:
            task.cancel()
        await asyncio.gather(*server.tasks, return_exceptions=True)
        listening.close()


def answering(*answers: bytes) -> Script:
    """Answers every request with these pieces, keeping the connection."""

    async def script(peer: Peer) -> None:
        while await peer.request():
            await peer.send(*answers)

    return script


def once(*answers: bytes) -> Script:
    """Answers the first request of a connection and closes it."""

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(*answers)

    return script
