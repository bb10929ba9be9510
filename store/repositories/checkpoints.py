"""Checkpoints, and which Episodes they saw, in the store."""

from collections.abc import Sequence

from sqlalchemy import select

from core.errors import NotFound
from core.policy import Checkpoint
from store.connection import Connection
from store.repositories.asked_prompts import AskedPrompts
from store.repositories.base import Repository
from store.tables.checkpoints import CHECKPOINTS
from store.tables.lineage import LINEAGE

LINEAGE_LOCK = 0x6C696E65
"""Of the PostgreSQL advisory lock: a withdrawal and a new Checkpoint must not each miss the other."""


class Checkpoints(Repository[Checkpoint]):
    """Checkpoints by id, one for each PolicyVersion."""

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection, Checkpoint, CHECKPOINTS)

    async def add(self, checkpoint: Checkpoint) -> None:
        """Add; raises Conflict when the id or the PolicyVersion has one already."""
        await self._add(checkpoint)

    async def get(self, checkpoint_id: str) -> Checkpoint:
        """One Checkpoint; raises NotFound."""
        return await self._get(checkpoint_id)

    async def update(self, checkpoint: Checkpoint) -> None:
        """Replace, to sign it; raises NotFound."""
        await self._update(checkpoint)

    async def for_version(self, policy: str, version: int) -> Checkpoint:
        """The Checkpoint that a PolicyVersion points at; raises NotFound."""
        found = await self._first(self._where(self._select(), policy=policy, version=version))
        if found is None:
            raise NotFound(f"{policy}@{version} has no Checkpoint")
        return found

    async def with_checksum(self, checksum: str) -> Checkpoint | None:
        """The Checkpoint, of whatever Policy, whose folder has this checksum; None: there is none."""
        named = CHECKPOINTS.c.payload.contains(f'"checksum":"{checksum}"', autoescape=True)
        return await self._first(self._select().where(named).order_by(CHECKPOINTS.c.id).limit(1))


class Lineage:
    """Which Episodes a Checkpoint saw, and which Checkpoints saw an Episode."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def add_many(self, checkpoint_id: str, episode_ids: Sequence[str]) -> int:
        """Note that a Checkpoint saw these Episodes; the number of new ones.

        What is read of Withdrawals afterwards is whole, without any Episodes too: an ancestor may have seen one.
        Raises TaskError when the Task of one of them, or a near-duplicate of its prompt, is held out.
        """
        await self._connection.exclusive(LINEAGE_LOCK)
        await AskedPrompts(self._connection).train_on(episode_ids)
        statement = self._connection.insert(LINEAGE).on_conflict_do_nothing().returning(LINEAGE.c.episode_id)
        rows = [{"checkpoint_id": checkpoint_id, "episode_id": episode_id} for episode_id in episode_ids]
        return len(await self._connection.change_returning(statement, rows))

    async def episodes_of(self, checkpoint_id: str) -> list[str]:
        """Ids of the Episodes that a Checkpoint saw, ascending."""
        query = select(LINEAGE.c.episode_id).where(LINEAGE.c.checkpoint_id == checkpoint_id)
        return sorted(row.episode_id for row in await self._connection.rows(query))

    async def checkpoints_of(self, episode_id: str) -> list[str]:
        """Ids of the Checkpoints that saw an Episode, ascending."""
        query = select(LINEAGE.c.checkpoint_id).where(LINEAGE.c.episode_id == episode_id)
        return sorted(row.checkpoint_id for row in await self._connection.rows(query))
