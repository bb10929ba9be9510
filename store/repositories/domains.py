"""Domains in the store."""

from core.task import Domain
from store.connection import Connection
from store.repositories.base import Repository
from store.tables.domains import DOMAINS


class Domains(Repository[Domain]):
    """Domains by name."""

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection, Domain, DOMAINS)

    async def put(self, domain: Domain) -> None:
        """Add or replace."""
        await self._put(domain)

    async def get(self, name: str) -> Domain:
        """One Domain; raises NotFound."""
        return await self._get(name)

    async def list(self) -> list[Domain]:
        """All Domains in order of name."""
        return await self._all(self._select().order_by(DOMAINS.c.name))
