"""Bases and Policies in the store."""

from core.policy import Base, Policy
from store.connection import Connection
from store.repositories.base import Repository
from store.tables.bases import BASES
from store.tables.policies import POLICIES


class Bases(Repository[Base]):
    """Bases by name."""

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection, Base, BASES)

    async def put(self, base: Base) -> None:
        """Add or replace."""
        await self._put(base)

    async def get(self, name: str) -> Base:
        """One Base; raises NotFound."""
        return await self._get(name)

    async def list(self) -> list[Base]:
        """All Bases in order of name."""
        return await self._all(self._select().order_by(BASES.c.name))


class Policies(Repository[Policy]):
    """Policies by name."""

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection, Policy, POLICIES)

    async def add(self, policy: Policy) -> None:
        """Add a new Policy; raises Conflict when the name is taken."""
        await self._add(policy)

    async def get(self, name: str, *, lock: bool = False) -> Policy:
        """One Policy; raises NotFound. With ``lock``, nobody else changes it before this transaction ends."""
        return await self._get(name, lock=lock)

    async def list(self) -> list[Policy]:
        """All Policies in order of name."""
        return await self._all(self._select().order_by(POLICIES.c.name))

    async def update(self, policy: Policy) -> None:
        """Replace; raises NotFound."""
        await self._update(policy)
