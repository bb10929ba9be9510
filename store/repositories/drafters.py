"""Drafters in the store."""

from core.drafter import Drafter
from store.connection import Connection
from store.repositories.base import Repository
from store.tables.drafters import DRAFTERS


class Drafters(Repository[Drafter]):
    """Drafters by Base."""

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection, Drafter, DRAFTERS)

    async def add(self, drafter: Drafter) -> None:
        """Add; raises Conflict when the id is taken."""
        await self._add(drafter)

    async def list(self, base: str) -> list[Drafter]:
        """Drafters of a Base, oldest first."""
        query = self._where(self._select(), base=base)
        return await self._all(query.order_by(DRAFTERS.c.created_at, DRAFTERS.c.id))
