"""Asking the learner for a run, and following it through the store."""

from collections.abc import AsyncIterator, Mapping
from typing import Any

from core.errors import LearnerError
from core.ids import RUN, new_id
from core.job import Job, JobStatus
from core.run import StepMetrics
from store.events import JOBS, VERSIONS
from store.store import Store


async def request_run(
    store: Store,
    *,
    policy: str,
    algorithm: str,
    domains: tuple[str, ...],
    steps: int,
    start_version: int,
    seed: int,
    overrides: Mapping[str, Any] | None = None,
) -> tuple[str, Job]:
    """Enqueue a training job; returns the run's id and the job."""
    run_id = new_id(RUN)
    payload = {
        "run_id": run_id,
        "policy": policy,
        "algorithm": algorithm,
        "domains": list(domains),
        "steps": steps,
        "seed": seed,
        "start_version": start_version,
        "shuffle_rewards": False,
        "overrides": dict(overrides or {}),
    }
    return run_id, await store.queue.enqueue("train", payload)


async def watch_run(store: Store, *, run_id: str, job: Job) -> AsyncIterator[StepMetrics]:
    """Yield each step as the learner records it; ends with the job, raises LearnerError when it failed."""
    seen = 0
    async with store.events.subscribe([JOBS, VERSIONS]) as subscription:
        while True:
            job = await store.queue.get(job.id)
            async with store.transaction() as tx:
                runs = [run for run in await tx.runs.list() if run.id == run_id]
            steps = runs[0].steps if runs else ()
            for step in steps[seen:]:
                yield step
            seen = len(steps)
            if job.status is JobStatus.DONE:
                return
            if job.status in {JobStatus.DEAD, JobStatus.CANCELLED}:
                raise LearnerError(f"the training run failed: {job.error}", hint="see the learner's log")
            await subscription.wait(1.0)
