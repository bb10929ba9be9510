"""Jobs as rows, and the statements that move them: the same on SQLite and PostgreSQL."""

import json
from collections.abc import Collection, Sequence
from typing import Any

from sqlalchemy import ColumnElement, Row, Select, Update, and_, case, func, null, or_, select, update

from core.errors import InvalidTransition, LeaseLost, NotFound
from core.job import JOB_TRANSITIONS, Job, JobStatus
from store.connection import Connection
from store.tables.jobs import JOBS

_JSON_FIELDS = ("payload", "result")
_NO_LEASE = {"owner": null(), "lease_until": null()}


class JobRows:
    """The jobs table within one transaction. ``now`` is its Unix time."""

    def __init__(self, connection: Connection, *, now: float) -> None:
        self._connection = connection
        self._now = now

    async def add(self, jobs: Sequence[Job]) -> list[Job]:
        """Insert; for a job whose idempotency key is taken, the job that has it."""
        insert = self._connection.insert(JOBS).on_conflict_do_nothing().returning(JOBS.c.id)
        rows = await self._connection.change_returning(insert, [_row(job) for job in jobs])
        added = {row.id for row in rows}
        return [job if job.id in added else await self._with_key(job.idempotency_key) for job in jobs]

    async def any_ready(self, kinds: Collection[str]) -> bool:
        """Whether a claim would find something, or a lease has run out."""
        query = select(JOBS.c.id).where(or_(self._ready(kinds), self._expired())).limit(1)
        return await self._connection.row(query) is not None

    async def return_expired(self) -> list[Job]:
        """Take jobs from owners whose lease has run out: back to the queue, or dead when out of attempts."""
        exhausted = JOBS.c.attempts >= JOBS.c.max_attempts
        late = select(JOBS.c.sequence).where(self._expired())
        expired = late.with_for_update(skip_locked=True).cte("expired")
        return await self._changed(
            update(JOBS)
            .where(JOBS.c.sequence.in_(select(expired.c.sequence)))
            .values(
                status=case((exhausted, JobStatus.DEAD.value), else_=JobStatus.QUEUED.value),
                error=func.coalesce("the lease of " + JOBS.c.owner + " ran out", JOBS.c.error),
                **_NO_LEASE,
            )
        )

    async def lease(self, kinds: Collection[str], owner: str, *, lease_until: float, limit: int) -> list[Job]:
        """Lease up to ``limit`` jobs: higher priority first, then in order of arrival."""
        # A CTE with FOR UPDATE is run once; as a plain subquery PostgreSQL might run it again and lock more.
        ready = (
            select(JOBS.c.sequence)
            .where(self._ready(kinds))
            .order_by(JOBS.c.priority.desc(), JOBS.c.sequence)
            .limit(limit)
            .with_for_update(skip_locked=True)
            .cte("ready")
        )
        return await self._changed(
            update(JOBS)
            .where(JOBS.c.sequence.in_(select(ready.c.sequence)))
            .values(
                status=JobStatus.LEASED,
                attempts=JOBS.c.attempts + 1,
                token=JOBS.c.token + 1,
                owner=owner,
                lease_until=lease_until,
            )
        )

    async def change_leased(self, job: Job, **values: Any) -> Job:
        """Change a job that is still leased under ``job.token``; raises LeaseLost."""
        holds = and_(JOBS.c.id == job.id, JOBS.c.token == job.token, JOBS.c.status == JobStatus.LEASED)
        changed = await self._changed(update(JOBS).where(holds).values(**values))
        if not changed:
            raise LeaseLost(f"job {job.id} is no longer leased under token {job.token}")
        return changed[0]

    async def give_up_lease(self, job: Job, status: JobStatus, **values: Any) -> Job:
        """Like ``change_leased``, and the job has no owner afterwards."""
        return await self.change_leased(job, status=status, **values, **_NO_LEASE)

    async def cancel(self, job_id: str) -> Job:
        """Queued or leased → cancelled; raises NotFound and InvalidTransition."""
        stored = await self._locked(job_id)
        JOB_TRANSITIONS.check(stored.status, JobStatus.CANCELLED)
        return await self._move(job_id, status=JobStatus.CANCELLED)

    async def requeue(self, job_id: str) -> Job:
        """Dead → queued with all attempts; raises NotFound and InvalidTransition."""
        stored = await self._locked(job_id)
        # The table also lets a leased job go back; but that is for its owner, and for time, to do.
        if stored.status is not JobStatus.DEAD:
            raise InvalidTransition(f"job {job_id} is {stored.status}; only a dead job is requeued")
        return await self._move(job_id, status=JobStatus.QUEUED, attempts=0, run_after=0.0)

    async def get(self, job_id: str) -> Job:
        """One job; raises NotFound."""
        return await self._one(select_jobs().where(JOBS.c.id == job_id), job_id)

    async def get_many(self, job_ids: Sequence[str]) -> list[Job]:
        """Jobs in the order of ``job_ids``; raises NotFound."""
        found: dict[str, Job] = {}
        for start in range(0, len(job_ids), 1000):
            query = select_jobs().where(JOBS.c.id.in_(job_ids[start : start + 1000]))
            found.update({row.id: job_of(row) for row in await self._connection.rows(query)})
        for job_id in job_ids:
            if job_id not in found:
                raise _missing(job_id)
        return [found[job_id] for job_id in job_ids]

    async def depth(self) -> dict[JobStatus, int]:
        """How many jobs have each status."""
        query = select(JOBS.c.status, func.count().label("jobs")).group_by(JOBS.c.status)
        counted = {row.status: int(row.jobs) for row in await self._connection.rows(query)}
        return {status: counted.get(status, 0) for status in JobStatus}

    async def dead(self, limit: int) -> list[Job]:
        """Dead jobs, the newest first."""
        query = select_jobs().where(JOBS.c.status == JobStatus.DEAD).order_by(JOBS.c.sequence.desc())
        return [job_of(row) for row in await self._connection.rows(query.limit(limit))]

    def _ready(self, kinds: Collection[str]) -> ColumnElement[bool]:
        return and_(JOBS.c.status == JobStatus.QUEUED, JOBS.c.kind.in_(list(kinds)), JOBS.c.run_after <= self._now)

    def _expired(self) -> ColumnElement[bool]:
        return and_(JOBS.c.status == JobStatus.LEASED, JOBS.c.lease_until <= self._now)

    async def _locked(self, job_id: str) -> Job:
        return await self._one(select_jobs().where(JOBS.c.id == job_id).with_for_update(), job_id)

    async def _move(self, job_id: str, **values: Any) -> Job:
        statement = update(JOBS).where(JOBS.c.id == job_id).values(**values, **_NO_LEASE)
        return (await self._changed(statement))[0]

    async def _changed(self, statement: Update) -> list[Job]:
        rows = await self._connection.change_returning(statement.returning(*JOBS.c))
        return [job_of(row) for row in sorted(rows, key=lambda row: (-row.priority, row.sequence))]

    async def _with_key(self, key: str | None) -> Job:
        return await self._one(select_jobs().where(JOBS.c.idempotency_key == key), f"with key {key}")

    async def _one(self, query: Select[Any], label: str) -> Job:
        row = await self._connection.row(query)
        if row is None:
            raise _missing(label)
        return job_of(row)


def select_jobs() -> Select[Any]:
    """All columns of jobs."""
    return select(*JOBS.c)


def _missing(label: str) -> NotFound:
    return NotFound(f"there is no job {label}")


def _row(job: Job) -> dict[str, Any]:
    row = job.model_dump(mode="json")
    return row | {name: None if row[name] is None else json.dumps(row[name]) for name in _JSON_FIELDS}


def job_of(row: Row[Any]) -> Job:
    """The Job in a row of ``select_jobs``."""
    values = dict(row._mapping)
    del values["sequence"]
    for name in _JSON_FIELDS:
        if values[name] is not None:
            values[name] = json.loads(values[name])
    return Job.model_validate(values)
