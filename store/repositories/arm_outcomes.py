"""ArmOutcomes in the store: what an A/B Experiment is judged by."""

from sqlalchemy import func, select, tuple_

from core.arm_outcome import ArmOutcome
from core.errors import NotFound
from store.connection import Connection
from store.repositories.base import Repository
from store.tables.arm_outcomes import ARM_OUTCOMES

Cursor = tuple[float, str]
"""``updated_at`` and ``episode_id`` of the last outcome that was read."""


class ArmOutcomes(Repository[ArmOutcome]):
    """ArmOutcomes by Experiment and Episode; late feedback moves one to the end of ``after``."""

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection, ArmOutcome, ARM_OUTCOMES)

    async def put(self, outcome: ArmOutcome) -> None:
        """Insert or replace; to change one, ``get`` it with ``lock`` first."""
        await self._put(outcome)

    async def add_new(self, outcome: ArmOutcome) -> bool:
        """Add unless the Episode has one; of two that add at once the second waits for the first."""
        return await self._add_new([outcome]) == 1

    async def get(self, experiment_id: str, episode_id: str, *, lock: bool = False) -> ArmOutcome:
        """One Episode's outcome; raises NotFound."""
        return await self._get(experiment_id, episode_id, lock=lock)

    async def find(self, experiment_id: str, episode_id: str, *, lock: bool = False) -> ArmOutcome | None:
        """As ``get``; None where there is none."""
        try:
            return await self._get(experiment_id, episode_id, lock=lock)
        except NotFound:
            return None

    async def of_episode(self, episode_id: str) -> list[ArmOutcome]:
        """The outcomes of an Episode, one for each Experiment that it was part of."""
        query = self._where(self._select(), episode_id=episode_id)
        return await self._all(query.order_by(ARM_OUTCOMES.c.experiment_id))

    async def of_key(self, key: str, *, before: float, limit: int = 200) -> list[ArmOutcome]:
        """The newest outcomes of a key, in whatever Experiment, that were begun before that time."""
        query = self._where(self._select(), key=key).where(ARM_OUTCOMES.c.updated_at < before)
        return await self._all(query.order_by(ARM_OUTCOMES.c.updated_at.desc()).limit(limit))

    async def after(self, experiment_id: str, cursor: Cursor | None = None, limit: int = 1_000) -> list[ArmOutcome]:
        """Outcomes that changed after ``cursor`` (``cursor_of`` the last one read; None: all), oldest change first.

        A transaction that was under way during the last reading may add one with an earlier time: who needs every
        single one begins a few seconds earlier. An outcome that changed comes again.
        """
        columns = ARM_OUTCOMES.c
        query = self._where(self._select(), experiment_id=experiment_id)
        if cursor is not None:
            query = query.where(tuple_(columns.updated_at, columns.episode_id) > tuple_(*cursor))
        return await self._all(query.order_by(columns.updated_at, columns.episode_id).limit(limit))

    async def counts(self, experiment_id: str) -> dict[str, int]:
        """Arm → Episodes with an outcome, those that saw two arms left out; these under ``mixed``."""
        columns = ARM_OUTCOMES.c
        query = select(columns.arm, columns.mixed, func.count().label("episodes"))
        query = query.where(columns.experiment_id == experiment_id).group_by(columns.arm, columns.mixed)
        found: dict[str, int] = {}
        for row in await self._connection.rows(query):
            name = "mixed" if row.mixed else row.arm
            found[name] = found.get(name, 0) + int(row.episodes)
        return found


def cursor_of(outcome: ArmOutcome) -> Cursor:
    """Where ``after`` goes on."""
    return outcome.updated_at, outcome.episode_id
