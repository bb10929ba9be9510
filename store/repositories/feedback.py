"""Feedback in the store."""

from sqlalchemy import select, tuple_

from core.feedback import Feedback
from store.connection import Connection
from store.repositories.base import Repository
from store.tables.feedback import FEEDBACK


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
