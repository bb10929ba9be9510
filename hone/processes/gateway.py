"""The gateway process: answers by itself, or watches over several processes that share its port."""

import asyncio

import uvloop
from prometheus_client import CollectorRegistry

from core.config.schema import HoneConfig
from hone.http_server import listen
from hone.processes.answering import answer
from hone.processes.parent import parent_arguments
from hone.processes.recorder import recorder_beside
from hone.processes.runner import run_process
from hone.settings import child_environment
from hone.supervisor import Supervisor
from store.store import Store

_LOOK_SECONDS = 1.0


async def serve(config: HoneConfig, store: Store, registry: CollectorRegistry, stop: asyncio.Event) -> None:
    """Answer requests until ``stop`` is set; running answers are finished first, then their Turns are stored."""
    async with recorder_beside(config, store):
        if config.gateway.workers == 1:
            await answer(config, store, registry, stop)
        else:
            await _watch_workers(config, stop)


async def _watch_workers(config: HoneConfig, stop: asyncio.Event) -> None:
    """Run ``gateway.workers`` processes, started again when they die. Raises MachineError when one keeps dying."""
    # Bound but not listening: the port is this gateway's while a worker is between two lives.
    with listen(config.gateway.host, config.gateway.port, key="gateway.port", shared=True):
        supervisor = Supervisor(
            environment=child_environment(config), log_folder=config.data_dir.expanduser() / "logs"
        )
        try:
            for number in range(config.gateway.workers):
                arguments = (str(number), *parent_arguments())
                await supervisor.start(f"gateway-{number}", arguments=arguments, module="gateway_worker")
            stopping = asyncio.create_task(stop.wait())
            while not stopping.done():
                await asyncio.wait({stopping}, timeout=_LOOK_SECONDS)
                supervisor.check()
        finally:
            await supervisor.stop()


def main() -> None:
    """Entry point of ``python -m hone.processes.gateway``."""
    run_process("gateway", serve, loop_factory=uvloop.new_event_loop)


if __name__ == "__main__":
    main()
