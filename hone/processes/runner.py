"""What every process entry point shares: configuration, logs, store, metrics port, signals, clear last words."""

import asyncio
import signal
import sys
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import structlog
from prometheus_client import (
    CollectorRegistry,
    GCCollector,
    PlatformCollector,
    ProcessCollector,
    start_http_server,
)

from core.config.schema import HoneConfig
from core.errors import HoneError, MachineError
from hone.logs import configure_logs
from hone.settings import load_settings
from store.store import Store

Serve = Callable[[HoneConfig, Store, CollectorRegistry, asyncio.Event], Awaitable[None]]
"""Runs a process's parts until the event is set."""

log = structlog.get_logger(__name__)


def run_process(
    name: str,
    serve: Serve,
    *,
    metrics_port: Callable[[HoneConfig], int] = lambda _: 0,
    loop_factory: Callable[[], asyncio.AbstractEventLoop] | None = None,
) -> None:
    """Run ``serve`` until SIGTERM or SIGINT; one line and exit 1 when it cannot go on."""
    try:
        config = load_settings()
        configure_logs(config.log, process=name)
        with asyncio.Runner(loop_factory=loop_factory) as runner:
            runner.run(_run(name, config, serve, metrics_port(config)))
    except HoneError as error:
        hint = f" ({error.hint})" if error.hint else ""
        sys.stderr.write(f"hone {name}: {error.message}{hint}\n")
        sys.exit(1)


async def until_stopped(stop: asyncio.Event, failure: Coroutine[Any, Any, None]) -> None:
    """Wait for ``stop``, or raise what ``failure`` raises: a part that ends by itself ends its process."""
    watching = asyncio.create_task(failure)
    stopping = asyncio.create_task(stop.wait())
    done, _ = await asyncio.wait({watching, stopping}, return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if watching in done:
        watching.result()
    watching.cancel()


async def _run(name: str, config: HoneConfig, serve: Serve, metrics_port: int) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    registry = process_registry()
    if metrics_port:
        _serve_metrics(config.metrics_host, metrics_port, registry)
    store = await Store.open(config, registry=registry)
    try:
        log.info("process.started", process=name)
        await serve(config, store, registry, stop)
        log.info("process.stopped", process=name)
    finally:
        await store.close()


def process_registry() -> CollectorRegistry:
    """A fresh registry with the metrics of the process itself."""
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    GCCollector(registry=registry)
    return registry


def _serve_metrics(host: str, port: int, registry: CollectorRegistry) -> None:
    try:
        start_http_server(port, addr=host, registry=registry)
    except OSError as error:
        raise MachineError(
            f"the metrics port {port} is not free: {error.strerror}",
            hint="set another metrics_port, or 0 for none",
        ) from error
