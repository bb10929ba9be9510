"""MinedTasks in the store."""

from collections.abc import Sequence

from sqlalchemy import select

from core.mined_task import MINED_TRANSITIONS, MinedStatus, MinedTask
from store.connection import Connection
from store.repositories.base import Repository
from store.tables.mined_tasks import MINED_TASKS


class MinedTasks(Repository[MinedTask]):
    """Proposals by id, with their lifecycle checked."""

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection, MinedTask, MINED_TASKS)

    async def add_many(self, mined: Sequence[MinedTask]) -> int:
        """Add those that the tenant has not in another form already; the number added."""
        return await self._add_new(sorted(mined, key=lambda one: one.id))

    async def get(self, mined_id: str, *, lock: bool = False) -> MinedTask:
        """One proposal; raises NotFound."""
        return await self._get(mined_id, lock=lock)

    async def update(self, mined: MinedTask) -> None:
        """Replace; raises NotFound, and InvalidTransition when the stored status forbids the new one."""
        stored = await self._get(mined.id, lock=True)
        if mined.status is not stored.status:
            MINED_TRANSITIONS.check(stored.status, mined.status)
        await self._update(mined)

    async def list(
        self, status: MinedStatus | None = None, *, episode_id: str | None = None, limit: int = 100
    ) -> list[MinedTask]:
        """Proposals, oldest first."""
        query = self._where(self._select(), status=status, episode_id=episode_id)
        return await self._all(query.order_by(MINED_TASKS.c.created_at, MINED_TASKS.c.id).limit(limit))

    async def mined_from(self, episode_ids: Sequence[str]) -> set[str]:
        """Those of these Episodes that something was mined from."""
        query = select(MINED_TASKS.c.episode_id).where(MINED_TASKS.c.episode_id.in_(list(episode_ids)))
        return {row.episode_id for row in await self._connection.rows(query)}
