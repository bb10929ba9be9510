"""TrainingRuns in the store."""

from collections.abc import Collection

from core.errors import LeaseLost, NotFound
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

    async def get(self, run_id: str, *, lock: bool = False) -> TrainingRun:
        """One run; raises NotFound."""
        return await self._get(run_id, lock=lock)

    async def take_over(self, run: TrainingRun) -> TrainingRun:
        """Begin a lease: the run as it is stored, now under the job and token of ``run``; a new one is added.

        Raises LeaseLost when a later lease of the same job has it.
        """
        stored = await self._locked(run.id)
        if stored is not None and stored.job_id == run.job_id and stored.lease_token > run.lease_token:
            raise _lost(stored)
        lease = {"job_id": run.job_id, "lease_token": run.lease_token}
        taken = stored.model_copy(update=lease) if stored is not None else run
        await self._put(taken)
        return taken

    async def advance(self, run: TrainingRun) -> None:
        """Add or replace, as the holder of ``run.lease_token``. Raises LeaseLost when another has taken it over."""
        await self.guard(run)
        await self._put(run)

    async def guard(self, run: TrainingRun) -> TrainingRun | None:
        """The stored run, which nobody else changes before the transaction ends; None: not stored yet.

        Raises LeaseLost when it was taken over since ``run`` was read.
        """
        stored = await self._locked(run.id)
        if stored is not None and (stored.job_id != run.job_id or stored.lease_token > run.lease_token):
            raise _lost(stored)
        return stored

    async def _locked(self, run_id: str) -> TrainingRun | None:
        try:
            return await self._get(run_id, lock=True)
        except NotFound:
            return None

    async def get_many(self, run_ids: Collection[str]) -> dict[str, TrainingRun]:
        """Those of these runs that exist, by id."""
        query = self._select().where(TRAINING_RUNS.c.id.in_(sorted(run_ids)))
        return {run.id: run for run in await self._all(query)}

    async def list(self, policy: str | None = None) -> list[TrainingRun]:
        """Runs (of a Policy), newest first."""
        query = self._where(self._select(), policy=policy)
        return await self._all(query.order_by(TRAINING_RUNS.c.created_at.desc(), TRAINING_RUNS.c.id.desc()))


def _lost(stored: TrainingRun) -> LeaseLost:
    return LeaseLost(f"run {stored.id} now belongs to lease {stored.lease_token} of job {stored.job_id}")
