"""Episodes and EpisodeGroups in the store."""

from collections.abc import Sequence

from sqlalchemy import select, tuple_

from core.episode import EPISODE_TRANSITIONS, Episode, EpisodeGroup, EpisodeStatus
from store.connection import Connection
from store.repositories.base import Repository
from store.tables.episode_groups import EPISODE_GROUPS
from store.tables.episodes import EPISODES

_PAGE = 1_000


class Episodes(Repository[Episode]):
    """Episodes by id, with their lifecycle checked."""

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection, Episode, EPISODES)

    async def add(self, episode: Episode) -> None:
        """Add a new Episode; raises Conflict when the id is taken."""
        await self._add(episode)

    async def add_many(self, episodes: Sequence[Episode]) -> int:
        """Add those whose ids are free; the number added."""
        # In one order everywhere, so that two batches with the same Episodes cannot wait for each other.
        return await self._add_new(sorted(episodes, key=lambda episode: episode.id))

    async def get(self, episode_id: str, *, lock: bool = False) -> Episode:
        """One Episode; raises NotFound."""
        return await self._get(episode_id, lock=lock)

    async def get_many(self, episode_ids: Sequence[str]) -> Sequence[Episode]:
        """Those of these Episodes that exist, in order of id."""
        found: list[Episode] = []
        for start in range(0, len(episode_ids), _PAGE):
            chosen = list(episode_ids[start : start + _PAGE])
            query = self._select().where(EPISODES.c.id.in_(chosen))
            found += await self._all(query.order_by(EPISODES.c.id))
        return found

    async def unfinished(self, *, created_before: float, limit: int = 1_000) -> Sequence[Episode]:
        """Episodes still running or not judged that began before a Unix time, oldest first."""
        wanted = [status for status in EpisodeStatus if not EPISODE_TRANSITIONS.is_terminal(status)]
        query = self._select().where(EPISODES.c.status.in_(wanted), EPISODES.c.created_at < created_before)
        return await self._all(query.order_by(EPISODES.c.created_at, EPISODES.c.id).limit(limit))

    async def update(self, episode: Episode) -> None:
        """Replace; raises NotFound, and InvalidTransition when the stored status forbids the new one."""
        stored = await self._get(episode.id, lock=True)
        if episode.status is not stored.status:
            EPISODE_TRANSITIONS.check(stored.status, episode.status)
        await self._update(episode)

    async def list(
        self,
        policy: str | None = None,
        domain: str | None = None,
        purpose: str | None = None,
        status: EpisodeStatus | None = None,
        tenant_id: str | None = None,
        group_id: str | None = None,
        limit: int = 100,
        before: str | None = None,
    ) -> list[Episode]:
        """A page, newest first; ``before`` is the id of the last Episode of the page before."""
        query = self._where(
            self._select(),
            policy=policy,
            domain=domain,
            purpose=purpose,
            status=status,
            tenant_id=tenant_id,
            group_id=group_id,
        )
        age = tuple_(EPISODES.c.created_at, EPISODES.c.id)
        if before is not None:
            last = select(EPISODES.c.created_at, EPISODES.c.id).where(EPISODES.c.id == before)
            query = query.where(age < last.scalar_subquery())
        query = query.order_by(EPISODES.c.created_at.desc(), EPISODES.c.id.desc())
        return await self._all(query.limit(limit))


class EpisodeGroups(Repository[EpisodeGroup]):
    """EpisodeGroups by id."""

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection, EpisodeGroup, EPISODE_GROUPS)

    async def add(self, group: EpisodeGroup) -> None:
        """Add a new group; raises Conflict when the id is taken."""
        await self._add(group)

    async def get(self, group_id: str) -> EpisodeGroup:
        """One group; raises NotFound."""
        return await self._get(group_id)
