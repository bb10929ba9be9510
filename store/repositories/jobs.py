"""How Jobs stand, within a transaction of other things. The queue alone moves them: see ``store.queue``."""

from collections.abc import Collection

from sqlalchemy import select

from core.job import Job, JobStatus
from store.connection import Connection
from store.job_rows import job_of, select_jobs
from store.tables.jobs import JOBS

_PAGE = 1_000


class Jobs:
    """Reads Jobs."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def statuses(self, job_ids: Collection[str]) -> dict[str, JobStatus]:
        """The status of each of these jobs that exists."""
        found: dict[str, JobStatus] = {}
        ordered = sorted(job_ids)
        for start in range(0, len(ordered), _PAGE):
            query = select(JOBS.c.id, JOBS.c.status).where(JOBS.c.id.in_(ordered[start : start + _PAGE]))
            found.update({row.id: JobStatus(row.status) for row in await self._connection.rows(query)})
        return found

    async def open(self, kinds: Collection[str]) -> list[Job]:
        """Jobs of these kinds that wait or are worked on, in the order of the queue."""
        going = (JobStatus.QUEUED, JobStatus.LEASED)
        query = select_jobs().where(JOBS.c.kind.in_(sorted(kinds)), JOBS.c.status.in_(going))
        return [job_of(row) for row in await self._connection.rows(query.order_by(JOBS.c.sequence))]

    async def given_up(self, kind: str, *, limit: int = 100) -> list[Job]:
        """Dead and cancelled jobs of a kind, the newest first."""
        ended = (JobStatus.DEAD, JobStatus.CANCELLED)
        query = select_jobs().where(JOBS.c.kind == kind, JOBS.c.status.in_(ended))
        rows = await self._connection.rows(query.order_by(JOBS.c.sequence.desc()).limit(limit))
        return [job_of(row) for row in rows]
