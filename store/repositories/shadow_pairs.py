"""ShadowPairs in the store: what a shadow is judged by."""

from sqlalchemy import func, select, tuple_

from core.shadow import ShadowPair
from store.connection import Connection
from store.repositories.base import Repository
from store.tables.shadow_pairs import SHADOW_PAIRS

Cursor = tuple[float, str]
"""``created_at`` and ``id`` of the last pair that was read."""


class ShadowPairs(Repository[ShadowPair]):
    """ShadowPairs by id; one that is there is never changed."""

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection, ShadowPair, SHADOW_PAIRS)

    async def add(self, pair: ShadowPair) -> None:
        """Add; raises Conflict when the id is taken."""
        await self._add(pair)

    async def get(self, pair_id: str) -> ShadowPair:
        """One pair; raises NotFound."""
        return await self._get(pair_id)

    async def after(
        self, experiment_id: str, cursor: Cursor | None = None, limit: int = 1_000
    ) -> tuple[list[ShadowPair], Cursor | None]:
        """Pairs made after ``cursor`` (None: all), oldest first, and the cursor to go on from.

        A transaction that was under way during the last reading may add one with an earlier time.
        """
        columns = SHADOW_PAIRS.c
        query = self._where(self._select(), experiment_id=experiment_id)
        if cursor is not None:
            query = query.where(tuple_(columns.created_at, columns.id) > tuple_(*cursor))
        pairs = await self._all(query.order_by(columns.created_at, columns.id).limit(limit))
        return pairs, (pairs[-1].created_at, pairs[-1].id) if pairs else cursor

    async def counts(self, experiment_id: str) -> dict[str, int]:
        """Status → pairs; of those skipped also ``skipped:REASON`` → pairs."""
        columns = SHADOW_PAIRS.c
        query = select(columns.status, columns.skipped_because, func.count().label("pairs"))
        query = query.where(columns.experiment_id == experiment_id).group_by(columns.status, columns.skipped_because)
        found: dict[str, int] = {}
        for row in await self._connection.rows(query):
            names = [row.status] if row.skipped_because is None else [row.status, f"skipped:{row.skipped_because}"]
            for name in names:
                found[name] = found.get(name, 0) + int(row.pairs)
        return found
