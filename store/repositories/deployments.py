"""Deployments in the store."""

from sqlalchemy import delete

from core.deployment import Deployment
from store.connection import Connection
from store.repositories.base import Repository
from store.tables.deployments import DEPLOYMENTS


class Deployments(Repository[Deployment]):
    """Deployments by id."""

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection, Deployment, DEPLOYMENTS)

    async def put(self, deployment: Deployment) -> None:
        """Add or replace."""
        await self._put(deployment)

    async def get(self, deployment_id: str, *, lock: bool = False) -> Deployment:
        """One Deployment; raises NotFound. With ``lock``, nobody else changes it before this transaction ends."""
        return await self._get(deployment_id, lock=lock)

    async def list(self, base: str | None = None, *, lock: bool = False) -> list[Deployment]:
        """All Deployments (of a Base) in order of id; with ``lock``, nobody else changes those there are."""
        query = self._where(self._select(), base=base).order_by(DEPLOYMENTS.c.id)
        return await self._all(query.with_for_update() if lock else query)

    async def remove(self, deployment_id: str) -> None:
        """Forget a Deployment; raises NotFound."""
        if await self._connection.change(delete(DEPLOYMENTS).where(self._is(deployment_id))) == 0:
            raise self._missing(deployment_id)
