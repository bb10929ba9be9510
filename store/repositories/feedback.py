"""Feedback in the store."""

from collections.abc import Mapping, Sequence

from sqlalchemy import select, tuple_

from core.feedback import Feedback
from store.connection import Connection
from store.repositories.base import Repository
from store.tables.feedback import FEEDBACK

_PAGE = 1_000


class FeedbackEntries(Repository[Feedback]):
    """Feedback by Tenant; only ever added."""

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection, Feedback, FEEDBACK)

    async def add(self, feedback: Feedback) -> Feedback:
        """Add, unless the Tenant has one under the same idempotency key; what is stored now."""
        if await self._add_new([feedback]) or feedback.idempotency_key is None:
            return feedback
        query = self._where(self._select(), tenant_id=feedback.tenant_id, idempotency_key=feedback.idempotency_key)
        return await self._first(query) or feedback

    async def on_episodes(self, episode_ids: Sequence[str]) -> Mapping[str, Sequence[Feedback]]:
        """Episode → all Feedback on it and its Turns, oldest first."""
        found: dict[str, list[Feedback]] = {}
        for start in range(0, len(episode_ids), _PAGE):
            chosen = list(episode_ids[start : start + _PAGE])
            query = self._select().where(FEEDBACK.c.episode_id.in_(chosen))
            for one in await self._all(query.order_by(FEEDBACK.c.created_at, FEEDBACK.c.id)):
                found.setdefault(one.episode_id, []).append(one)
        return found

    async def episodes_since(self, created_after: float, *, limit: int) -> Sequence[str]:
        """Ids of Episodes that Feedback came for after a Unix time, those of the newest first, each once."""
        query = select(FEEDBACK.c.episode_id).where(FEEDBACK.c.created_at > created_after)
        rows = await self._connection.rows(query.order_by(FEEDBACK.c.created_at.desc()).limit(limit))
        return list(dict.fromkeys(str(row.episode_id) for row in rows))

    async def list(
        self,
        tenant_id: str,
        *,
        episode_id: str | None = None,
        turn_id: str | None = None,
        name: str | None = None,
        after: str | None = None,
        limit: int = 1_000,
    ) -> list[Feedback]:
        """A Tenant's Feedback (on an Episode and its Turns, on one Turn, of one name), oldest first.

        ``after`` is the id of the last one of the page before; one that does not exist gives an empty page.
        """
        wanted = {"tenant_id": tenant_id, "episode_id": episode_id, "turn_id": turn_id, "name": name}
        query = self._where(self._select(), **wanted)
        if after is not None:
            last = select(FEEDBACK.c.created_at, FEEDBACK.c.id)
            last = last.where(FEEDBACK.c.tenant_id == tenant_id, FEEDBACK.c.id == after)
            query = query.where(tuple_(FEEDBACK.c.created_at, FEEDBACK.c.id) > last.scalar_subquery())
        return await self._all(query.order_by(FEEDBACK.c.created_at, FEEDBACK.c.id).limit(limit))
