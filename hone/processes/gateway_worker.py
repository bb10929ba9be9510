"""One of several gateway processes that share a port: ``python -m hone.processes.gateway_worker NUMBER``."""

import asyncio
import sys

import uvloop
from prometheus_client import CollectorRegistry

from core.config.schema import HoneConfig
from hone.processes.answering import answer
from hone.processes.parent import parent_of, until_over
from hone.processes.runner import run_process
from store.store import Store


async def serve(config: HoneConfig, store: Store, registry: CollectorRegistry, stop: asyncio.Event) -> None:
    """Answer requests until ``stop`` is set or the process that started this one ends."""

    async def watch() -> None:
        await until_over(stop, parent_of(sys.argv))
        stop.set()

    watching = asyncio.create_task(watch(), name="parent")
    try:
        await answer(config, store, registry, stop, number=int(sys.argv[1]))
    finally:
        watching.cancel()


def main() -> None:
    """Entry point of ``python -m hone.processes.gateway_worker``."""
    run_process("gateway", serve, loop_factory=uvloop.new_event_loop)


if __name__ == "__main__":
    main()
