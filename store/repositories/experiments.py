"""Experiments and Assignments in the store."""

from core.errors import Conflict
from core.experiment import Assignment, Experiment
from store.connection import Connection
from store.repositories.base import Repository
from store.tables.assignments import ASSIGNMENTS
from store.tables.experiments import EXPERIMENTS


class Experiments(Repository[Experiment]):
    """Experiments by id."""

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection, Experiment, EXPERIMENTS)

    async def add(self, experiment: Experiment) -> None:
        """Add; raises Conflict when the id is taken."""
        await self._add(experiment)

    async def get(self, experiment_id: str, *, lock: bool = False) -> Experiment:
        """One Experiment; raises NotFound."""
        return await self._get(experiment_id, lock=lock)

    async def list(self, policy: str | None = None, status: str | None = None) -> list[Experiment]:
        """Experiments (of a Policy, with a status), oldest first."""
        query = self._where(self._select(), policy=policy, status=status)
        return await self._all(query.order_by(EXPERIMENTS.c.created_at, EXPERIMENTS.c.id))

    async def update(self, experiment: Experiment) -> None:
        """Replace; raises NotFound, and Conflict for one that was stopped and would run again.

        Whoever moves a ramp on may have read it just before somebody else ended it.
        """
        stored = await self._get(experiment.id, lock=True)
        if stored.status == "stopped" and experiment.status == "running":
            why = stored.stopped_because or "no reason recorded"
            raise Conflict(f"Experiment '{experiment.id}' was stopped meanwhile: {why}", hint="begin a new one")
        await self._update(experiment)


class Assignments(Repository[Assignment]):
    """Which arm a key got: the first Assignment of a key stays."""

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection, Assignment, ASSIGNMENTS)

    async def add(self, assignment: Assignment) -> Assignment:
        """Add unless the key has one; the Assignment that counts."""
        await self._add_new([assignment])
        return await self._get(assignment.experiment_id, assignment.key)

    async def get(self, experiment_id: str, key: str) -> Assignment:
        """A key's Assignment; raises NotFound."""
        return await self._get(experiment_id, key)
