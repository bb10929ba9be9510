"""An engine that follows vLLM's weight-transfer routes, and what stands for the sender's GPU."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

from core.errors import EngineUnavailable


class ScriptedEngine:
    """vLLM's weight-transfer routes; those that move tensors answer only once the sender has done its part."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, Any]] = []
        self.joined = asyncio.Event()
        self.sent = asyncio.Event()
        self.fail: dict[str, int] = {}
        self.url = ""
        self.label = "default"

    async def handle(self, request: web.Request) -> web.Response:
        body = await request.json() if request.can_read_body else None
        self.calls.append((request.path, body))
        status = self.fail.pop(request.path, 200)
        if status != 200:
            return web.json_response({"error": "scripted"}, status=status)
        if request.path == "/get_world_size":
            return web.json_response({"world_size": 2})
        if request.path == "/init_weight_transfer_engine":
            await self.joined.wait()
        if request.path == "/update_weights":
            await self.sent.wait()
        if request.path == "/finish_weight_update":
            self.label = body["weight_version"]
        return web.json_response({"message": "done"})

    async def load_weights(self, path: str, *, label: str) -> None:
        """Never called by this wire."""
        raise AssertionError(f"{path} was to be read from disk as {label}")


class FakeSender:
    """Stands for rank 0; it only counts once the engine's side has begun, as NCCL's calls do."""

    def __init__(self, engine: ScriptedEngine) -> None:
        self.engine = engine
        self.done: list[tuple[Any, ...]] = []
        self.fail = False
        self.closed = False

    async def join(self, engine: str, *, address: str, port: int, world_size: int) -> None:
        self.done.append(("join", address, port, world_size))
        self.engine.joined.set()

    async def send(self, engine: str, path: str) -> None:
        if self.fail:
            raise EngineUnavailable("the sender is away")
        self.done.append(("send", path))
        self.engine.sent.set()

    async def close(self) -> None:
        self.closed = True


@asynccontextmanager
async def scripted_engine() -> AsyncIterator[ScriptedEngine]:
    """A running ScriptedEngine."""
    scripted = ScriptedEngine()
    application = web.Application()
    application.router.add_route("*", "/{path}", scripted.handle)
    runner = web.AppRunner(application, shutdown_timeout=0.01, handler_cancellation=True)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    scripted.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield scripted
    finally:
        await runner.cleanup()
