"""Verdicts and Rewards in the store."""

from collections.abc import Mapping, Sequence

from core.verdict import Reward, Verdict
from store.connection import Connection
from store.repositories.base import Repository
from store.tables.rewards import REWARDS
from store.tables.verdicts import VERDICTS

_PAGE = 1_000


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

    async def get_many(self, episode_ids: Sequence[str]) -> Mapping[str, Reward]:
        """Episode → its Reward, of those that have one."""
        found: dict[str, Reward] = {}
        for start in range(0, len(episode_ids), _PAGE):
            chosen = list(episode_ids[start : start + _PAGE])
            query = self._select().where(REWARDS.c.episode_id.in_(chosen))
            found |= {one.episode_id: one for one in await self._all(query)}
        return found
