"""The learner process: SFT and GRPO runs on DeepSpeed.

Under ``torchrun`` or ``deepspeed`` there are several: rank 0 is the learner, the others do what it does.
"""

import asyncio
import signal

from prometheus_client import CollectorRegistry

from core.config.schema import HoneConfig
from hone.logs import configure_logs
from hone.processes.runner import run_process, until_stopped
from hone.settings import load_settings
from learner.distributed import is_follower
from learner.main import Learner, rank_main
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
    if is_follower():
        # Launchers pass signals on to every rank; rank 0 finishes what is under way and dismisses the others.
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
        configure_logs(load_settings().log, process="learner")
        rank_main()
        return
    run_process("learner", serve, metrics_port=lambda config: config.learner.metrics_port)


if __name__ == "__main__":
    main()
