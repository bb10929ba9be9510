"""Verdicts and Rewards in the store."""

from collections.abc import Sequence

from core.verdict import Reward, Verdict
from store.connection import Connection
from store.repositories.base import Repository
from store.tables.rewards import REWARDS
from store.tables.verdicts import VERDICTS


class Verdicts(Repository[Verdict]):
    """Verdicts by Episode."""

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection, Verdict, VERDICTS)

    async def add_many(self, verdicts: Sequence[Verdict]) -> int:
        """Add those not known yet; the number of new ones."""
        return await self._add_new(verdicts)

    async def for_episode(self, episode_id: str) -> list[Verdict]:
        """An Episode's Verdicts, oldest first."""
        query = self._where(self._select(), episode_id=episode_id)
        return await self._all(query.order_by(VERDICTS.c.created_at, VERDICTS.c.id))


class Rewards(Repository[Reward]):
    """One Reward for each scored Episode."""

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection, Reward, REWARDS)

    async def put(self, reward: Reward) -> None:
        """Add or replace."""
        await self._put(reward)

    async def get(self, episode_id: str) -> Reward:
        """The Reward of an Episode; raises NotFound."""
        return await self._get(episode_id)
