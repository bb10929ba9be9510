"""Run as a program: Learners, one process after the other, lead jobs and die by SIGKILL where they are told to.

Argument, as JSON: a list of a configuration, a job's payload, and where each of its processes dies (empty: nowhere).
A job is asked for once those before it are done. Prints how each process ended, job by job.
"""

import asyncio
import json
import os
import signal
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from prometheus_client import CollectorRegistry

import learner.main
import learner.session
from core.config.schema import HoneConfig
from core.job import JobStatus
from learner.main import Learner
from store.store import Store
from tests.forked import import_what, in_child
from tests.learner_harness import stub_fleet

STATE_EVERY = 2
LEASE_SECONDS = 3.0


def die(*_: Any, **__: Any) -> None:
    """No handler runs, nothing is flushed."""
    os.kill(os.getpid(), signal.SIGKILL)


def then_die(real: Callable[..., Any], *, call: int) -> Callable[..., Any]:
    """``real``, and after so many calls the end."""
    calls: list[int] = []

    def done(*args: Any, **options: Any) -> Any:
        result = real(*args, **options)
        calls.append(1)
        return result if len(calls) < call else die()

    return done


def arm(point: str) -> None:
    """Prepare the process to die at ``point``."""
    session = learner.session.TrainingSession
    if point == "state_saved":
        session._save_state = then_die(session._save_state, call=1)
    elif point == "between_steps":
        session._observe = then_die(session._observe, call=3)
    elif point == "checkpoint_written":
        learner.session.publish = die
    elif point == "published":
        session.wait_until_served = die


async def lead(config: HoneConfig, payload: dict[str, Any]) -> None:
    """Until the job has ended; the first process asks for it. What else a job ends as than done is an error."""
    torch.set_num_threads(1)
    store = await Store.open(config)
    name = config.data_dir / f"{payload['run_id']}.job"
    if not name.exists():
        name.write_text((await store.queue.enqueue("train", payload, max_attempts=20)).id)
    job_id = name.read_text()
    serving = asyncio.create_task(stub_fleet(store))
    one = Learner(config=config, store=store, registry=CollectorRegistry())
    await one.start()
    while (job := await store.queue.get(job_id)).status in (JobStatus.QUEUED, JobStatus.LEASED):
        await asyncio.sleep(0.05)
    assert job.status is JobStatus.DONE, job.error
    await one.stop()
    serving.cancel()
    await asyncio.gather(serving, return_exceptions=True)
    await store.close()


def one_life(config: HoneConfig, payload: dict[str, Any], point: str) -> None:
    """A process that leads the job until it dies at ``point`` (empty: never)."""
    learner.session.STEPS_PER_STATE = learner.train.STEPS_PER_STATE = STATE_EVERY
    learner.main._LEASE_SECONDS = LEASE_SECONDS
    learner.main._LOOK_AGAIN_SECONDS = 0.1
    arm(point)
    asyncio.run(lead(config, payload))


def main(plan: list[tuple[dict[str, Any], dict[str, Any], list[str]]]) -> list[list[int]]:
    """The first job is led by one process, after which this one has imported what it did."""
    (first, payload, _), *others = plan
    import_what(partial(one_life, HoneConfig.model_validate(first), payload, ""))
    ends = [[0]]
    for values, payload, points in others:
        config = HoneConfig.model_validate(values)
        ends.append([in_child(partial(one_life, config, payload, point)) for point in points])
    return ends


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main(json.loads(sys.argv[1]))))
