"""The worker process: rollouts, verifiers, evaluations, and the tool service beside them."""

import asyncio

from prometheus_client import CollectorRegistry

from core.config.schema import HoneConfig
from hone.local_keys import with_tools_key, worker_key
from hone.processes.runner import run_process
from hone.tool_service import ToolService
from sandbox.runtimes.factory import make_runtime
from sandbox.worker import Worker
from store.store import Store


async def serve(config: HoneConfig, store: Store, registry: CollectorRegistry, stop: asyncio.Event) -> None:
    """Lease and run jobs until ``stop`` is set; unfinished jobs are given back."""
    runtime = make_runtime(config.sandbox)
    await runtime.start()
    try:
        worker = Worker(
            config=config,
            store=store,
            runtime=runtime,
            gateway_url=config.gateway_url,
            api_key=worker_key(config),
            registry=registry,
        )
        tools = ToolService(config=with_tools_key(config), registry=registry)
        try:
            await tools.start()
            await worker.start()
            await stop.wait()
        finally:
            await worker.stop()
            await tools.stop()
    finally:
        await runtime.stop()


def main() -> None:
    """Entry point of ``python -m hone.processes.worker``."""
    run_process("worker", serve, metrics_port=lambda config: config.worker.metrics_port)


if __name__ == "__main__":
    main()
