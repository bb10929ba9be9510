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

    async def get(self, deployment_id: str) -> Deployment:
        """One Deployment; raises NotFound."""
        return await self._get(deployment_id)

    async def list(self, base: str | None = None) -> list[Deployment]:
        """All Deployments (of a Base) in order of id."""
        return await self._all(self._where(self._select(), base=base).order_by(DEPLOYMENTS.c.id))

    async def remove(self, deployment_id: str) -> None:
        """Forget a Deployment; raises NotFound."""
        if await self._connection.change(delete(DEPLOYMENTS).where(self._is(deployment_id))) == 0:
            raise self._missing(deployment_id)
