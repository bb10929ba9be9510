"""HTTP servers of Hone's processes: uvicorn that leaves signals alone, and a socket with a clear error."""

import asyncio
import contextlib
import socket
from collections.abc import Callable, Iterator
from typing import Any

import uvicorn

from serving.ports import bound

_GRACE_SECONDS = 10


class QuietServer(uvicorn.Server):
    """uvicorn without its own signal handlers: the process's runner owns the signals."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave the signals alone."""
        yield


def listen(host: str, port: int, *, key: str, shared: bool = False) -> socket.socket:
    """A bound socket; raises MachineError that names ``key``, the configuration key of the port.

    ``shared``: several processes listen on the port together.
    """
    variable = f"HONE_{key.replace('.', '__').upper()}"
    listener = bound(host, port, hint=f"stop what listens there, or set {key} ({variable})", shared=shared)
    # Inherited by what it accepts: head and body of a small answer must not wait for each other's acknowledgement.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener


class SideServer:
    """A small HTTP application beside a process's main work."""

    def __init__(self, app: Callable[..., Any], listener: socket.socket) -> None:
        """Serves ``app`` on a socket made by ``listen``, which is the port's owner from now on."""
        listener.listen()
        self._listener = listener
        self._server = QuietServer(
            uvicorn.Config(
                app,
                http="httptools",
                lifespan="off",
                access_log=False,
                log_level="warning",
                proxy_headers=False,
                timeout_graceful_shutdown=_GRACE_SECONDS,
            )
        )
        self._serving: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Begin to answer."""
        self._serving = asyncio.create_task(self._server.serve(sockets=[self._listener]), name="side server")

    async def stop(self) -> None:
        """Finish running answers, for a moment, and stop."""
        if self._serving is not None:
            self._server.should_exit = True
            await self._serving
            self._serving = None
        self._listener.close()
