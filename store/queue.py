"""JobQueue: durable work in one SQL table, with leases, fencing tokens, retries and a dead letter.

A job belongs to the owner whose lease holds ``job.token``. When the lease runs out another owner may take the
job over under a higher token, and what the first one still says is refused with LeaseLost. Times are this
process's clock: machines that share a queue must agree to well within a lease (NTP); a wrong clock costs
repeated work, never a second result.
"""

import json
import random
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from core import ids
from core.job import Job, JobStatus, retry_delay_seconds
from core.noun import now
from store.connection import Connection
from store.database import Database
from store.events import JOBS, Events
from store.job_rows import JobRows


class JobQueue:
    """Enqueue, claim and finish Jobs. Raises StoreError when the database fails."""

    def __init__(self, database: Database, events: Events, *, clock: Callable[[], float] = now) -> None:
        self._database = database
        self._events = events
        self._clock = clock

    async def enqueue(
        self,
        kind: str,
        payload: Mapping[str, Any],
        *,
        priority: int = 0,
        max_attempts: int = 3,
        idempotency_key: str | None = None,
        run_after: float = 0.0,
    ) -> Job:
        """Add a job, to run at Unix time ``run_after`` or later.

        A known ``idempotency_key`` adds nothing: the job that has it is returned, whatever its status.
        """
        job = self._new(
            kind,
            payload,
            priority=priority,
            max_attempts=max_attempts,
            idempotency_key=idempotency_key,
            run_after=run_after,
        )
        return (await self._add([job]))[0]

    async def enqueue_many(
        self, kind: str, payloads: Sequence[Mapping[str, Any]], *, priority: int = 0, max_attempts: int = 3
    ) -> list[Job]:
        """Add jobs in one transaction; they come up in this order."""
        jobs = [self._new(kind, payload, priority=priority, max_attempts=max_attempts) for payload in payloads]
        return await self._add(jobs) if jobs else []

    async def claim(self, kinds: Collection[str], owner: str, *, lease_seconds: float, limit: int = 1) -> list[Job]:
        """Lease up to ``limit`` ready jobs of these kinds, those with expired leases among them."""
        time = self._clock()
        # Most wake-ups find nothing: look first, so that idle workers do not queue up as writers.
        async with self._database.reading() as connection:
            if not await JobRows(connection, now=time).any_ready(kinds):
                return []
        async with self._database.transaction() as connection:
            rows = JobRows(connection, now=time)
            returned = await rows.return_expired()
            leased = await rows.lease(kinds, owner, lease_until=time + lease_seconds, limit=limit)
        if returned:
            await self._announce(returned[0])
        return leased

    async def heartbeat(self, job: Job, lease_seconds: float) -> Job:
        """Prolong the lease from now on; raises LeaseLost."""
        async with self._database.transaction() as connection:
            return await self._rows(connection).change_leased(job, lease_until=self._clock() + lease_seconds)

    async def complete(self, job: Job, result: Mapping[str, Any]) -> Job:
        """Store the result and finish; raises LeaseLost."""
        async with self._database.transaction() as connection:
            done = await self._rows(connection).give_up_lease(
                job, JobStatus.DONE, result=json.dumps(dict(result)), error=None
            )
        await self._announce(done)
        return done

    async def fail(self, job: Job, error: str, *, retryable: bool = True) -> Job:
        """Queue the job again after a pause, or bury it when out of attempts; raises LeaseLost."""
        again = retryable and job.attempts < job.max_attempts
        status = JobStatus.QUEUED if again else JobStatus.DEAD
        pause = retry_delay_seconds(job.attempts, random.random())
        run_after = self._clock() + pause if again else job.run_after
        async with self._database.transaction() as connection:
            failed = await self._rows(connection).give_up_lease(job, status, error=error, run_after=run_after)
        await self._announce(failed)
        return failed

    async def release(self, job: Job) -> Job:
        """Hand the job back, as an owner that stops does: the attempt does not count. Raises LeaseLost."""
        async with self._database.transaction() as connection:
            released = await self._rows(connection).give_up_lease(job, JobStatus.QUEUED, attempts=job.attempts - 1)
        await self._announce(released)
        return released

    async def sweep(self) -> int:
        """Take jobs from owners whose lease has run out; how many."""
        async with self._database.transaction() as connection:
            returned = await self._rows(connection).return_expired()
        if returned:
            await self._announce(returned[0])
        return len(returned)

    async def cancel(self, job_id: str) -> Job:
        """Withdraw a queued or leased job; an owner loses its lease. Raises NotFound, InvalidTransition."""
        async with self._database.transaction() as connection:
            cancelled = await self._rows(connection).cancel(job_id)
        await self._announce(cancelled)
        return cancelled

    async def requeue(self, job_id: str) -> Job:
        """Give a dead job all its attempts again; raises NotFound, InvalidTransition."""
        async with self._database.transaction() as connection:
            requeued = await self._rows(connection).requeue(job_id)
        await self._announce(requeued)
        return requeued

    async def get(self, job_id: str) -> Job:
        """One job; raises NotFound."""
        async with self._database.reading() as connection:
            return await self._rows(connection).get(job_id)

    async def get_many(self, job_ids: Sequence[str]) -> list[Job]:
        """Jobs in the order of ``job_ids``; raises NotFound when one is missing."""
        async with self._database.reading() as connection:
            return await self._rows(connection).get_many(job_ids)

    async def depth(self) -> dict[JobStatus, int]:
        """How many jobs have each status."""
        async with self._database.reading() as connection:
            return await self._rows(connection).depth()

    async def dead(self, limit: int = 100) -> list[Job]:
        """Dead jobs, the newest first."""
        async with self._database.reading() as connection:
            return await self._rows(connection).dead(limit)

    def _new(self, kind: str, payload: Mapping[str, Any], **fields: Any) -> Job:
        return Job(id=ids.new_id(ids.JOB), kind=kind, payload=dict(payload), created_at=self._clock(), **fields)

    async def _add(self, jobs: Sequence[Job]) -> list[Job]:
        async with self._database.transaction() as connection:
            added = await self._rows(connection).add(jobs)
        await self._announce(added[0])
        return added

    def _rows(self, connection: Connection) -> JobRows:
        return JobRows(connection, now=self._clock())

    async def _announce(self, job: Job) -> None:
        await self._events.publish(JOBS, {"job": job.id, "kind": job.kind, "status": job.status.value})
