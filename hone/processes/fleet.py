"""The fleet process: engines, hot-swaps, health; one of several for a Base leads."""

import asyncio

from prometheus_client import CollectorRegistry

from core.config.schema import HoneConfig
from core.errors import MachineError, NotFound
from core.policy import Base
from hone.processes.runner import run_process, until_stopped
from serving.led_fleet import LedFleet
from store.store import Store


async def serve(config: HoneConfig, store: Store, registry: CollectorRegistry, stop: asyncio.Event) -> None:
    """Reconcile wanted and live Deployments, or wait for the lead, until ``stop`` is set."""
    fleet = LedFleet(config=config, store=store, base=await _base(config, store), registry=registry)
    try:
        await fleet.start()
        await until_stopped(stop, fleet.wait())
    finally:
        await fleet.stop()


async def _base(config: HoneConfig, store: Store) -> Base:
    async with store.transaction() as tx:
        try:
            return await tx.bases.get(config.base.name)
        except NotFound as error:
            raise MachineError(
                f"the Base '{config.base.name}' is not registered", hint="run 'hone prepare' once"
            ) from error


def main() -> None:
    """Entry point of ``python -m hone.processes.fleet``."""
    run_process("fleet", serve, metrics_port=lambda config: config.fleet.metrics_port)


if __name__ == "__main__":
    main()
