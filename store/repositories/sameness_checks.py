"""SamenessChecks in the store; only the newest of a replica are kept."""

from sqlalchemy import delete, select

from core.sameness import SamenessCheck
from store.connection import Connection
from store.repositories.base import Repository
from store.tables.sameness_checks import SAMENESS_CHECKS


class SamenessChecks(Repository[SamenessCheck]):
    """SamenessChecks by Base and by the fast replica that was judged."""

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection, SamenessCheck, SAMENESS_CHECKS)

    async def add(self, check: SamenessCheck, *, keep: int) -> None:
        """Add, and drop what is older than the newest ``keep`` of its replica. Conflict: the id is taken."""
        await self._add(check)
        columns = SAMENESS_CHECKS.c
        newest = (
            select(columns.id)
            .where(columns.fast_id == check.fast_id)
            .order_by(columns.created_at.desc(), columns.id.desc())
            .limit(keep)
        )
        ids = [row.id for row in await self._connection.rows(newest)]
        await self._connection.change(
            delete(SAMENESS_CHECKS).where(columns.fast_id == check.fast_id, columns.id.not_in(ids))
        )

    async def list(
        self, *, base: str | None = None, fast_id: str | None = None, limit: int = 100
    ) -> list[SamenessCheck]:
        """The newest checks, newest first."""
        query = self._where(self._select(), base=base, fast_id=fast_id)
        columns = SAMENESS_CHECKS.c
        return await self._all(query.order_by(columns.created_at.desc(), columns.id.desc()).limit(limit))
