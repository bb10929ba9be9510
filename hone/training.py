"""Asking the learner for a run, and following it through the store."""

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

from core.errors import InvalidTransition, LearnerError, NotFound
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
    shuffle_rewards: bool = False,
) -> tuple[str, Job]:
    """Enqueue a training job; returns the run's id and the job.

    ``shuffle_rewards``: a control, which has rewards that say nothing.
    """
    run_id = new_id(RUN)
    payload = {
        "run_id": run_id,
        "policy": policy,
        "algorithm": algorithm,
        "domains": list(domains),
        "steps": steps,
        "seed": seed,
        "start_version": start_version,
        "shuffle_rewards": shuffle_rewards,
        "overrides": dict(overrides or {}),
    }
    return run_id, await store.queue.enqueue("train", payload)


async def watch_run(
    store: Store, *, run_id: str, job: Job, check: Callable[[], None], queued_seconds: float = math.inf
) -> AsyncIterator[StepMetrics]:
    """Yield each step as the learner records it; ends with the job, raises LearnerError when it failed.

    ``check`` is called in each pass and may raise. A job that no learner takes for ``queued_seconds`` is cancelled:
    LearnerError.
    """
    seen = 0
    loop = asyncio.get_running_loop()
    queued_until = loop.time() + queued_seconds
    async with store.events.subscribe([JOBS, VERSIONS]) as subscription:
        while True:
            check()
            job = await store.queue.get(job.id)
            steps = await _steps(store, run_id)
            for step in steps[seen:]:
                yield step
            seen = len(steps)
            if job.status is JobStatus.DONE:
                if reason := (job.result or {}).get("stopped"):
                    raise LearnerError(str(reason), hint=f"'hone runs show {run_id}' shows its steps")
                return
            if job.status in {JobStatus.DEAD, JobStatus.CANCELLED}:
                raise LearnerError(f"the training run failed: {job.error}", hint="see the learner's log")
            if job.status is JobStatus.QUEUED and job.attempts == 0 and loop.time() >= queued_until:
                await _withdraw(store, job)
            await subscription.wait(1.0)


async def _steps(store: Store, run_id: str) -> tuple[StepMetrics, ...]:
    async with store.reading() as tx:
        try:
            return (await tx.runs.get(run_id)).steps
        except NotFound:
            return ()


async def _withdraw(store: Store, job: Job) -> None:
    """Cancel a job that waits: LearnerError, unless a learner took it just now."""
    if (await store.queue.get(job.id)).status is not JobStatus.QUEUED:
        return
    try:
        await store.queue.cancel(job.id)
    except InvalidTransition:
        return
    raise LearnerError("no learner has taken the job", hint="start one with 'hone up' or 'hone learner'")
