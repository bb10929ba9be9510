"""The gateway process: uvicorn with uvloop and httptools around ``gateway.app``."""

import asyncio
import contextlib
import socket
from collections.abc import Iterator

import uvicorn
from prometheus_client import CollectorRegistry

from core.config.schema import HoneConfig
from core.errors import MachineError
from gateway.app import create_app
from hone.processes.runner import run_process
from store.store import Store


class _Server(uvicorn.Server):
    """uvicorn without its own signal handlers: the runner owns the signals."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave the signals alone."""
        yield


async def serve(config: HoneConfig, store: Store, registry: CollectorRegistry, stop: asyncio.Event) -> None:
    """Answer requests until ``stop`` is set; running answers are finished first."""
    listener = _listen(config.gateway.host, config.gateway.port)
    app = create_app(config, store, registry=registry)
    server = _Server(
        uvicorn.Config(
            app,
            loop="uvloop",
            http="httptools",
            access_log=False,
            log_level="warning",
            proxy_headers=False,
            backlog=4096,
            timeout_graceful_shutdown=30,
        )
    )
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    stopping = asyncio.create_task(stop.wait())
    await asyncio.wait({serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
    server.should_exit = True
    stopping.cancel()
    await serving


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise MachineError(
            f"port {port} on {host} is not free: {error.strerror}",
            hint="stop what listens there, or set gateway.port (HONE_GATEWAY__PORT)",
        ) from error
    return listener


def main() -> None:
    """Entry point of ``python -m hone.processes.gateway``."""
    run_process("gateway", serve)


if __name__ == "__main__":
    main()
