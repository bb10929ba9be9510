"""ShadowPairs in the store: what a shadow is judged by, and counts of what it left out."""

import time
from collections.abc import Mapping
from typing import Any

from sqlalchemy import func, select

from core.shadow import ShadowPair, ShadowStatus
from store.connection import Connection
from store.repositories.base import Repository
from store.tables.shadow_pairs import SHADOW_PAIRS
from store.tables.shadow_skips import SHADOW_SKIPS

_LOCK = 0x5AD0
"""Pairs are numbered one transaction after the other, so that numbers appear in their order."""

Cursor = int
"""Number of the last pair that was read."""


class ShadowPairs(Repository[ShadowPair]):
    """ShadowPairs by id, in the order in which they were committed."""

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection, ShadowPair, SHADOW_PAIRS)
        self._sequence: int | None = None
        """Of the row that is written now."""

    def _row(self, noun: ShadowPair) -> dict[str, Any]:
        return super()._row(noun) | {"sequence": self._sequence}

    async def add(self, pair: ShadowPair) -> None:
        """Add; raises Conflict when the id is taken."""
        self._sequence = await self._next(pair.experiment_id)
        await self._add(pair)

    async def add_new(self, pair: ShadowPair) -> bool:
        """Add unless the id is taken: whoever is not sure that an earlier try was committed may try again."""
        self._sequence = await self._next(pair.experiment_id)
        return await self._add_new([pair]) == 1

    async def update(self, pair: ShadowPair) -> None:
        """Replace one whose score came late; it is read again, after all others. Raises NotFound."""
        self._sequence = await self._next(pair.experiment_id)
        await self._update(pair)

    async def get(self, pair_id: str) -> ShadowPair:
        """One pair; raises NotFound."""
        return await self._get(pair_id)

    async def after(
        self, experiment_id: str, cursor: Cursor | None = None, limit: int = 1_000, *, until: Cursor | None = None
    ) -> tuple[list[ShadowPair], Cursor | None]:
        """Pairs committed after ``cursor`` (None: all), in that order, and the cursor to go on from.

        ``until``: none after this cursor.
        """
        columns = SHADOW_PAIRS.c
        query = self._where(self._select().add_columns(columns.sequence), experiment_id=experiment_id)
        if cursor is not None:
            query = query.where(columns.sequence > cursor)
        if until is not None:
            query = query.where(columns.sequence <= until)
        rows = await self._connection.rows(query.order_by(columns.sequence).limit(limit))
        return [self._noun_of(row) for row in rows], int(rows[-1].sequence) if rows else cursor

    async def skip(self, experiment_id: str, reasons: Mapping[str, int]) -> None:
        """Add to the counts of requests that were not mirrored: reason → requests since the last call."""
        table = SHADOW_SKIPS
        # In one order everywhere, so that two writers cannot wait for each other.
        for reason, requests in sorted(reasons.items()):
            row = {"experiment_id": experiment_id, "reason": reason, "requests": requests}
            statement = self._connection.insert(table).values(row)
            added = table.c.requests + statement.excluded.requests
            keys = ["experiment_id", "reason"]
            await self._connection.change(
                statement.on_conflict_do_update(index_elements=keys, set_={"requests": added})
            )

    async def counts(self, experiment_id: str) -> dict[str, int]:
        """Status → requests; of those skipped also ``skipped:REASON`` → requests."""
        columns = SHADOW_PAIRS.c
        query = select(columns.status, columns.skipped_because, func.count().label("pairs"))
        query = query.where(columns.experiment_id == experiment_id).group_by(columns.status, columns.skipped_because)
        found: dict[str, int] = {}
        for row in await self._connection.rows(query):
            names = [row.status] if row.skipped_because is None else [row.status, f"skipped:{row.skipped_because}"]
            for name in names:
                found[name] = found.get(name, 0) + int(row.pairs)
        skips = select(SHADOW_SKIPS.c.reason, SHADOW_SKIPS.c.requests)
        for row in await self._connection.rows(skips.where(SHADOW_SKIPS.c.experiment_id == experiment_id)):
            for name in (ShadowStatus.SKIPPED.value, f"skipped:{row.reason}"):
                found[name] = found.get(name, 0) + int(row.requests)
        return found

    async def spent(self, experiment_id: str) -> tuple[int, int]:
        """Requests that were mirrored, and tokens that the candidate sampled for them."""
        columns = SHADOW_PAIRS.c
        query = select(
            func.count().label("pairs"), func.coalesce(func.sum(columns.candidate_tokens), 0).label("tokens")
        )
        query = query.where(columns.experiment_id == experiment_id, columns.status != ShadowStatus.SKIPPED.value)
        row = await self._connection.row(query)
        return (0, 0) if row is None else (int(row.pairs), int(row.tokens))

    async def _next(self, experiment_id: str) -> int:
        await self._connection.exclusive(_LOCK)
        query = select(func.max(SHADOW_PAIRS.c.sequence).label("last"))
        row = await self._connection.row(query.where(SHADOW_PAIRS.c.experiment_id == experiment_id))
        last = 0 if row is None or row.last is None else int(row.last)
        # By the clock: the number of a pair that was erased must not come again.
        return max(last + 1, int(time.time() * 1e6))
