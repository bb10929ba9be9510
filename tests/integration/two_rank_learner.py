"""Run as a program: a Learner with two ranks does one SFT job on the store of a data folder and prints the losses."""

import asyncio
import json
import sys

from prometheus_client import CollectorRegistry

from core.config.schema import HoneConfig
from core.job import JobStatus
from learner.main import Learner
from store.store import Store


async def main(config: HoneConfig, payload: dict) -> list[float]:
    """Losses of the run's steps."""
    store = await Store.open(config)
    job = await store.queue.enqueue("train", payload, max_attempts=1)
    learner = Learner(config=config, store=store, registry=CollectorRegistry())
    await learner.start()
    while (current := await store.queue.get(job.id)).status in (JobStatus.QUEUED, JobStatus.LEASED):
        await asyncio.sleep(0.1)
    await learner.stop()
    assert current.status is JobStatus.DONE, current.error
    async with store.reading() as work:
        run = await work.runs.get(payload["run_id"])
    await store.close()
    return [step.loss for step in run.steps]


if __name__ == "__main__":
    losses = asyncio.run(main(HoneConfig.model_validate_json(sys.argv[1]), json.loads(sys.argv[2])))
    sys.stdout.write(json.dumps(losses))
