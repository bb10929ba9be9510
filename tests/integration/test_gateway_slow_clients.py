"""Clients that read slowly, or not at all, and streams in which nothing happens: what they hold in memory."""

import asyncio
import contextlib
import json
import socket
from typing import Any

import psutil
import pytest

from gateway.upstream.connection import UNREAD_BYTES
from tests.gateway_harness import POLICY, QUESTION, running_gateway
from tests.gateway_process import install, start_gateway, until
from tests.scripted_server import Peer, scripted
from tests.services import free_port

BODY = {"model": POLICY, "messages": QUESTION, "max_tokens": 20, "stream": True}
SSE = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
STREAMS = 1000
MOST_STREAM_BYTES = 100 * 1024
FLOOD_BYTES = 256 * 1024 * 1024
MOST_KERNEL_BYTES = 48 * 1024 * 1024
"""Socket buffers of two connections over loopback, at the most that a kernel gives them by itself."""


def request_bytes(key: str) -> bytes:
    """A streamed request as a client writes it."""
    body = json.dumps(BODY).encode()
    head = [
        b"POST /v1/chat/completions HTTP/1.1",
        b"host: gateway",
        b"authorization: Bearer " + key.encode(),
        b"content-type: application/json",
        b"content-length: %d" % len(body),
    ]
    return b"\r\n".join([*head, b"", body])


def event(content: str) -> bytes:
    """A chunk of a stream, framed."""
    chunk = {"id": "c", "model": "base", "choices": [{"index": 0, "delta": {"content": content}}]}
    data = b"data: " + json.dumps(chunk).encode() + b"\n\n"
    return b"%x\r\n%b\r\n" % (len(data), data)


async def test_a_client_that_does_not_read_stops_the_engine_and_not_the_memory(
    fresh_sqlite_url, open_store, make_config
):
    """What an engine sends to a client that reads nothing waits at the engine; when the client leaves, it ends."""
    sent, left = 0, asyncio.Event()
    large = event("x" * 65536)

    async def flooding(peer: Peer) -> None:
        nonlocal sent
        await peer.request()
        peer.writer.write(SSE)
        try:
            while sent < FLOOD_BYTES:
                peer.writer.write(large)
                await peer.writer.drain()
                sent += len(large)
        except ConnectionError:
            left.set()

    store = await open_store(fresh_sqlite_url)
    async with running_gateway(store, make_config) as harness, scripted(flooding) as server:
        await harness.add_engine()
        harness.engine._port = int(server.url.split(":")[2].split("/")[0])
        await harness.deploy("dep_a")
        with socket.socket() as client:
            client.setblocking(False)
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            loop = asyncio.get_running_loop()
            await loop.sock_connect(client, ("127.0.0.1", int(harness.url.rpartition(":")[2])))
            await loop.sock_sendall(client, request_bytes(harness.keys["user"]))
            await until(lambda: sent > 0)
            before = -1
            while sent != before:
                before = sent
                await asyncio.sleep(1.0)
            assert sent < MOST_KERNEL_BYTES
            upstream: Any = harness.gateway.upstream
            held = [connection.unread for connection in upstream._connections]
            assert max(held) <= 2 * UNREAD_BYTES
            assert harness.count("hone_streams_in_flight") == 1
        await asyncio.wait_for(left.wait(), 30)
        labels = {"route": "/v1/chat/completions", "model": POLICY, "status": "499"}
        await until(lambda: harness.count("hone_requests_total", **labels) == 1)
        assert upstream.open_connections == 0


@pytest.mark.timeout(600)
async def test_a_thousand_idle_streams_stay_cheap(
    fresh_sqlite_url, open_store, make_config, record_property, started
):
    """A stream in which nothing happens holds little memory in the gateway's process, and all are given up again."""
    open_now = 0

    async def idle(peer: Peer) -> None:
        nonlocal open_now
        await peer.request()
        peer.writer.write(SSE + event("x"))
        open_now += 1
        await peer.gone()
        open_now -= 1

    overrides = {"base.name": "base", "store.url": fresh_sqlite_url, "gateway.port": free_port()}
    config = make_config(overrides)
    store = await open_store(fresh_sqlite_url)
    async with scripted(idle) as server, contextlib.AsyncExitStack() as stack:
        key = await install(store, server.url.removesuffix("/v1/chat/completions"))
        process = await start_gateway(config, started)
        stack.push_async_callback(process.wait)
        stack.callback(process.terminate)
        gateway = psutil.Process(process.pid)
        writers: list[asyncio.StreamWriter] = []

        async def open_one() -> None:
            reader, writer = await asyncio.open_connection("127.0.0.1", config.gateway.port)
            writers.append(writer)
            writer.write(request_bytes(key))
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 ")
            await reader.readuntil(b"\n\n")

        async def open_many(count: int) -> None:
            for _ in range(count // 50):
                await asyncio.gather(*(open_one() for _ in range(50)))

        await open_many(100)
        before = gateway.memory_info().rss
        await open_many(STREAMS)
        assert open_now == STREAMS + 100
        each = (gateway.memory_info().rss - before) / STREAMS
        record_property("bytes_per_idle_stream", int(each))
        print(f"{each / 1024:.1f} KiB for each of {STREAMS} idle streams")
        assert each <= MOST_STREAM_BYTES
        for writer in writers:
            writer.close()
        await until(lambda: open_now == 0)
