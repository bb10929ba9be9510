"""Drafters in the store."""

from collections.abc import Collection

from sqlalchemy import func, select

from core.drafter import DRAFTER_TRANSITIONS, Drafter, DrafterStatus
from core.errors import Conflict
from store.connection import Connection
from store.repositories.base import Repository
from store.tables.drafters import DRAFTERS

_ATTEMPTS = 20
"""Numbers that others may take between looking and adding."""


class Drafters(Repository[Drafter]):
    """Drafters by id, numbered by Base, with their lifecycle checked."""

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection, Drafter, DRAFTERS)

    async def add(self, drafter: Drafter) -> None:
        """Add under its own number; raises Conflict when the id, or the number on its Base, is taken."""
        await self._add(drafter)

    async def mint(self, drafter: Drafter) -> Drafter:
        """Add under the next number of its Base, counted from 1; the Drafter with that number.

        Rows are never removed, so no number is given out twice. Raises Conflict when the id is taken.
        """
        for _ in range(_ATTEMPTS):
            query = select(func.max(DRAFTERS.c.number).label("last")).where(DRAFTERS.c.base == drafter.base)
            row = await self._connection.row(query)
            last = 0 if row is None or row.last is None else int(row.last)
            numbered = drafter.model_copy(update={"number": last + 1})
            if await self._add_new([numbered]):
                return numbered
        raise Conflict(f"Drafter {drafter.id} exists already, or its number was taken {_ATTEMPTS} times")

    async def get(self, drafter_id: str, *, lock: bool = False) -> Drafter:
        """One Drafter; raises NotFound."""
        return await self._get(drafter_id, lock=lock)

    async def update(self, drafter: Drafter) -> None:
        """Replace; raises NotFound, and InvalidTransition when the stored status forbids the new one."""
        stored = await self._get(drafter.id, lock=True)
        if drafter.status is not stored.status:
            DRAFTER_TRANSITIONS.check(stored.status, drafter.status)
        await self._update(drafter)

    async def list(
        self,
        base: str | None = None,
        *,
        policy: str | None = None,
        statuses: Collection[DrafterStatus] | None = None,
    ) -> list[Drafter]:
        """Drafters of a Base (and a Policy), with one of these statuses, in order of number."""
        query = self._where(self._select(), base=base, policy=policy)
        if statuses is not None:
            query = query.where(DRAFTERS.c.status.in_([status.value for status in statuses]))
        return await self._all(query.order_by(DRAFTERS.c.base, DRAFTERS.c.number))
