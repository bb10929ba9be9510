"""Aliases in the store."""

from sqlalchemy import delete

from core.alias import Alias
from store.connection import Connection
from store.repositories.base import Repository
from store.tables.aliases import ALIASES


class Aliases(Repository[Alias]):
    """Aliases by Policy and name."""

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection, Alias, ALIASES)

    async def put(self, alias: Alias) -> None:
        """Add or replace."""
        await self._put(alias)

    async def list(self, policy: str | None = None) -> list[Alias]:
        """Aliases (of a Policy) in order of Policy and name."""
        query = self._where(self._select(), policy=policy)
        return await self._all(query.order_by(ALIASES.c.policy, ALIASES.c.name))

    async def delete(self, policy: str, name: str) -> None:
        """Remove; raises NotFound."""
        if await self._connection.change(delete(ALIASES).where(self._is(policy, name))) == 0:
            raise self._missing(policy, name)
