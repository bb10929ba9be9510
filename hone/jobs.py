"""Waiting for a job that the running workers do."""

import asyncio
from collections.abc import Callable

from core.errors import InvalidTransition, SandboxError
from core.job import Job, JobStatus
from store.events import JOBS
from store.store import Store


def nothing_to_check() -> None:
    """For waits beside which no process of ours could die."""


async def finished(store: Store, job: Job, *, check: Callable[[], None], seconds: float) -> Job:
    """Wait until ``job`` is done and return it; ``check`` is called in each pass and may raise.

    Raises SandboxError when the job failed, or was not done in time; it is cancelled then.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    async with store.events.subscribe([JOBS]) as subscription:
        while True:
            check()
            job = await store.queue.get(job.id)
            if job.status is JobStatus.DONE:
                return job
            if job.status in {JobStatus.DEAD, JobStatus.CANCELLED}:
                raise SandboxError(
                    f"the {job.kind} job was {job.status}: {job.error or 'no reason was recorded'}",
                    hint="see the worker's log and 'hone doctor'",
                )
            if loop.time() >= deadline:
                break
            await subscription.wait(1.0)
    return await withdrawn(store, job, seconds)


async def withdrawn(store: Store, job: Job, seconds: float) -> Job:
    """Cancel a job that took too long: SandboxError, unless it was done just now."""
    try:
        await store.queue.cancel(job.id)
    except InvalidTransition:
        job = await store.queue.get(job.id)
        if job.status is JobStatus.DONE:
            return job
    waited = "no worker took it" if job.status is JobStatus.QUEUED else "a worker is still at it"
    raise SandboxError(
        f"the {job.kind} job was not done after {seconds:.0f} s ({waited}) and is cancelled",
        hint="start a worker with 'hone up' or 'hone worker'",
    )
