"""Evaluations in the store."""

from core.evaluation import Evaluation
from store.connection import Connection
from store.repositories.base import Repository
from store.tables.evaluations import EVALUATIONS


class Evaluations(Repository[Evaluation]):
    """Evaluations by PolicyVersion."""

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection, Evaluation, EVALUATIONS)

    async def add(self, evaluation: Evaluation) -> None:
        """Add; raises Conflict when the id is taken."""
        await self._add(evaluation)

    async def get(self, evaluation_id: str) -> Evaluation:
        """One Evaluation; raises NotFound."""
        return await self._get(evaluation_id)

    async def list(self, policy: str, version: int | None = None) -> list[Evaluation]:
        """Evaluations of a Policy (of one version), oldest first."""
        query = self._where(self._select(), policy=policy, version=version)
        return await self._all(query.order_by(EVALUATIONS.c.created_at, EVALUATIONS.c.id))
