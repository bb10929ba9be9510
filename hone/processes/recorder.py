"""The recorder process: moves Turns from the journals of this machine's gateways into the store."""

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncIterator

import structlog
from prometheus_client import CollectorRegistry

from core.config.schema import HoneConfig
from gateway.recorder import make_drain
from hone.processes.runner import run_process
from hone.settings import child_environment
from hone.supervisor import Supervisor
from store.store import Store

log = structlog.get_logger(__name__)

_PARENT = "--parent"
_PARENT_SECONDS = 0.2


async def serve(config: HoneConfig, store: Store, _registry: CollectorRegistry, stop: asyncio.Event) -> None:
    """Drain until ``stop`` is set or the gateway that started this process ends; what is there is written first.

    Of several such processes on the same folder one writes, and another takes over when it ends.
    """
    drain = make_drain(config, store)
    await drain.start()
    try:
        await _until_over(stop, _parent())
    finally:
        await drain.stop()


@contextlib.asynccontextmanager
async def recorder_beside(config: HoneConfig, store: Store) -> AsyncIterator[None]:
    """A recorder process for the gateway inside the block, started again when it dies; none where configured so.

    What is left at the end, because it was starting or dead, is written here. Raises MachineError when it cannot be
    started.
    """
    if config.gateway.recorder != "process":
        yield
        return
    supervisor = Supervisor(environment=child_environment(config), log_folder=config.data_dir.expanduser() / "logs")
    await supervisor.start("recorder", arguments=(_PARENT, str(os.getpid())))
    try:
        yield
    finally:
        await supervisor.stop()
        drain = make_drain(config, store)
        await drain.start()
        await drain.stop()


def _parent() -> int | None:
    arguments = sys.argv[1:]
    return int(arguments[1]) if arguments[:1] == [_PARENT] else None


async def _until_over(stop: asyncio.Event, parent: int | None) -> None:
    while not stop.is_set():
        if parent is not None and os.getppid() != parent:
            log.warning("recorder_orphaned", parent=parent)
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_PARENT_SECONDS):
                await stop.wait()


def main() -> None:
    """Entry point of ``python -m hone.processes.recorder``."""
    run_process("recorder", serve)


if __name__ == "__main__":
    main()
