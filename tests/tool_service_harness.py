"""A running tool service with real boxes, and a real MCP server, for tests."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import uvicorn
from prometheus_client import CollectorRegistry

from core.access import ApiKey, Scope, Tenant
from core.config.schema import HoneConfig
from gateway.auth import Caller
from hone.http_server import SideServer, listen
from sandbox.runtimes.base import Runtime
from sandbox.runtimes.factory import make_runtime
from sandbox.service.app import create_tool_app
from sandbox.service.sessions import ToolSessions

KEY = "tool-key-for-tests"


class Clock:
    """Seconds that pass when a test says so."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        """The present."""
        return self.now


@dataclass
class RunningService:
    """One tool service."""

    url: str
    sessions: ToolSessions
    clock: Clock
    config: HoneConfig
    runtime: Runtime


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@asynccontextmanager
async def running_service(
    make_config: Callable[..., HoneConfig], overrides: dict[str, Any] | None = None, *, runtime: Runtime | None = None
) -> AsyncIterator[RunningService]:
    """A tool service under uvicorn on the real runtime, unless another is given."""
    port = free_port()
    values = {
        "worker.tools_port": port,
        "worker.tools_key": KEY,
        "sandbox.pool_size": 1,
        "sandbox.wall_seconds": 20.0,
        "sandbox.output_bytes": 4096,
        "sandbox.memory_mib": 96,
    } | (overrides or {})
    config = make_config(values)
    section = config.sandbox.model_copy(update={"max_boxes": config.worker.tools_sessions})
    chosen = runtime or make_runtime(section)
    clock = Clock()
    sessions = ToolSessions(
        runtime=chosen, worker=config.worker, sandbox=section, registry=CollectorRegistry(), clock=clock
    )
    app = create_tool_app(sessions, key=KEY, url=config.tools_url, idle_seconds=config.worker.tools_idle_seconds)
    await chosen.start()
    await sessions.start()
    server = SideServer(app, listen("127.0.0.1", port, key="worker.tools_port"))
    await server.start()
    try:
        yield RunningService(config.tools_url, sessions, clock, config, chosen)
    finally:
        await sessions.stop()
        await server.stop()
        await chosen.stop()


def caller(tenant: str) -> Caller:
    """A caller of a tenant."""
    key = ApiKey(
        id=f"key_{tenant}", tenant_id=tenant, name="k", key_hash="0" * 64, scopes=frozenset({Scope.INFERENCE})
    )
    return Caller(key=key, tenant=Tenant(id=tenant, name=tenant))


@asynccontextmanager
async def running_app(app: Any) -> AsyncIterator[int]:
    """Any ASGI application under uvicorn, its lifespan included; gives the port."""
    listener = listen("127.0.0.1", 0, key="test")
    server = uvicorn.Server(uvicorn.Config(app, log_level="error", timeout_graceful_shutdown=1))
    server.capture_signals = contextlib.nullcontext  # type: ignore[method-assign, assignment]
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    while not server.started:
        await asyncio.sleep(0.01)
    try:
        yield listener.getsockname()[1]
    finally:
        server.should_exit = True
        await serving
        listener.close()
