"""A worker process for tests that kill it: ``python -m tests.integration.sandbox_worker_process``."""

import asyncio

from prometheus_client import CollectorRegistry

from core.config.load import load_config
from sandbox.worker import Worker
from store.store import Store
from tests.sandbox_fakes import DirectRuntime


async def main() -> None:
    """Run until killed."""
    config = load_config()
    store = await Store.open(config)
    worker = Worker(
        config=config,
        store=store,
        runtime=DirectRuntime(),
        gateway_url=config.gateway_url,
        api_key=config.worker.api_key.get_secret_value(),
        registry=CollectorRegistry(),
    )
    await worker.start()
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
