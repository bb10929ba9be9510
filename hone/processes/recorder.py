"""The recorder process: moves Turns from the journals of this machine's gateways into the store."""

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator

from prometheus_client import CollectorRegistry

from core.config.schema import HoneConfig
from gateway.recorder import make_drain
from hone.processes.parent import parent_arguments, parent_of, until_over
from hone.processes.runner import run_process
from hone.settings import child_environment
from hone.supervisor import Supervisor
from store.store import Store


async def serve(config: HoneConfig, store: Store, _registry: CollectorRegistry, stop: asyncio.Event) -> None:
    """Drain until ``stop`` is set or the gateway that started this process ends; what is there is written first.

    Of several such processes on the same folder one writes, and another takes over when it ends.
    """
    drain = make_drain(config, store)
    await drain.start()
    try:
        await until_over(stop, parent_of(sys.argv))
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
    await supervisor.start("recorder", arguments=parent_arguments())
    try:
        yield
    finally:
        await supervisor.stop()
        drain = make_drain(config, store)
        await drain.start()
        await drain.stop()


def main() -> None:
    """Entry point of ``python -m hone.processes.recorder``."""
    run_process("recorder", serve)


if __name__ == "__main__":
    main()
