"""TrainingRuns in the store."""

from core.run import TrainingRun
from store.connection import Connection
from store.repositories.base import Repository
from store.tables.training_runs import TRAINING_RUNS


class TrainingRuns(Repository[TrainingRun]):
    """TrainingRuns by id."""

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection, TrainingRun, TRAINING_RUNS)

    async def put(self, run: TrainingRun) -> None:
        """Add or replace."""
        await self._put(run)

    async def get(self, run_id: str) -> TrainingRun:
        """One run; raises NotFound."""
        return await self._get(run_id)

    async def list(self, policy: str | None = None) -> list[TrainingRun]:
        """Runs (of a Policy), newest first."""
        query = self._where(self._select(), policy=policy)
        return await self._all(query.order_by(TRAINING_RUNS.c.created_at.desc(), TRAINING_RUNS.c.id.desc()))
