"""The learner process: SFT and GRPO runs on DeepSpeed."""

import asyncio

from prometheus_client import CollectorRegistry

from core.config.schema import HoneConfig
from hone.processes.runner import run_process, until_stopped
from learner.main import Learner
from store.store import Store


async def serve(config: HoneConfig, store: Store, registry: CollectorRegistry, stop: asyncio.Event) -> None:
    """Lease and run training jobs until ``stop`` is set; an unfinished run resumes where it was."""
    learner = Learner(config=config, store=store, registry=registry)
    await learner.start()
    try:
        await until_stopped(stop, learner.wait())
    finally:
        await learner.stop()


def main() -> None:
    """Entry point of ``python -m hone.processes.learner``."""
    run_process("learner", serve, metrics_port=lambda config: config.learner.metrics_port)


if __name__ == "__main__":
    main()
