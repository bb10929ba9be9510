"""Erasure: removes every row that belongs to an Episode or a Tenant, whatever table it is in."""

import json
from collections import Counter
from collections.abc import Sequence

from sqlalchemy import Table, delete, select

from core.stored_completion import StoredCompletion
from core.stored_response import StoredResponse
from store.connection import Connection
from store.repositories.private_tasks import in_domain_of, pages, tasks_of_episode, tasks_of_tenant
from store.tables.api_keys import API_KEYS
from store.tables.domains import DOMAINS
from store.tables.episodes import EPISODES
from store.tables.metadata import METADATA
from store.tables.mined_tasks import MINED_TASKS
from store.tables.stored_completions import STORED_COMPLETION_METADATA, STORED_COMPLETIONS
from store.tables.stored_responses import STORED_RESPONSES
from store.tables.tasks import TASKS
from store.tables.tenants import TENANTS
from store.tables.turns import TURNS

_KEPT = frozenset({"lineage", "withdrawals", "tombstones", "audit_records", "usage"})
"""Ids and counts: what the erasure is proven and billed by."""
_LAST = frozenset({"tenants", "api_keys", "episodes", "mined_tasks"})


class Erasure:
    """Deletes rows; a table with an ``episode_id`` or ``tenant_id`` column is found by that column."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def attempts(self, episode_id: str) -> list[str]:
        """Ids of the Episodes that attempted a Task mined from this one: they hold its words too."""
        found: list[str] = []
        for page in pages(await tasks_of_episode(self._connection, episode_id)):
            query = select(EPISODES.c.id).where(EPISODES.c.task_id.in_(page))
            found += [row.id for row in await self._connection.rows(query)]
        return sorted(found)

    async def episodes_of(self, tenant_id: str, *, limit: int) -> list[str]:
        """Ids of some of a Tenant's Episodes; after these, of whoever's attempts at its private Tasks."""
        query = select(EPISODES.c.id).order_by(EPISODES.c.id).limit(limit)
        rows = await self._connection.rows(query.where(EPISODES.c.tenant_id == tenant_id))
        if rows:
            return [row.id for row in rows]
        for page in pages(await tasks_of_tenant(self._connection, tenant_id)):
            rows = await self._connection.rows(query.where(EPISODES.c.task_id.in_(page)))
            if rows:
                return [row.id for row in rows]
        return []

    async def episode(self, tenant_id: str, episode_id: str) -> tuple[Counter[str], list[str]]:
        """Remove an Episode with all that belongs to it; rows removed by table, and keys of blobs to delete then."""
        counts: Counter[str] = Counter()
        blobs = await self._blobs(TURNS.c.episode_id == episode_id)
        counts["tasks"] += await self._tasks(await tasks_of_episode(self._connection, episode_id))
        for table in _tables("episode_id"):
            counts[table.name] += await self._connection.change(delete(table).where(table.c.episode_id == episode_id))
        counts += await self._answers(tenant_id, episode_id)
        counts["episodes"] += await self._connection.change(delete(EPISODES).where(EPISODES.c.id == episode_id))
        return +counts, blobs

    async def tenant(self, tenant_id: str) -> tuple[Counter[str], list[str]]:
        """Remove what is left of a Tenant, its keys and itself; counts and blobs as ``episode``."""
        counts: Counter[str] = Counter()
        blobs = await self._blobs(TURNS.c.tenant_id == tenant_id)
        # Before the Suites: they name the Tasks.
        counts["tasks"] += await self._tasks(await tasks_of_tenant(self._connection, tenant_id))
        named = in_domain_of(DOMAINS.c.name, tenant_id)
        counts["domains"] += await self._connection.change(delete(DOMAINS).where(named))
        for table in _tables("tenant_id"):
            counts[table.name] += await self._connection.change(delete(table).where(table.c.tenant_id == tenant_id))
        counts["mined_tasks"] += await self._connection.change(
            delete(MINED_TASKS).where(MINED_TASKS.c.tenant_id == tenant_id)
        )
        counts["api_keys"] += await self._connection.change(delete(API_KEYS).where(API_KEYS.c.tenant_id == tenant_id))
        counts["tenants"] += await self._connection.change(delete(TENANTS).where(TENANTS.c.id == tenant_id))
        return +counts, blobs

    async def _tasks(self, task_ids: list[str]) -> int:
        removed = 0
        for page in pages(task_ids):
            removed += await self._connection.change(delete(TASKS).where(TASKS.c.id.in_(page)))
        return removed

    async def _blobs(self, which: object) -> list[str]:
        query = select(TURNS.c.tokens_blob).where(which, TURNS.c.tokens_blob.is_not(None))  # type: ignore[arg-type]
        return [str(row.tokens_blob) for row in await self._connection.rows(query)]

    async def _answers(self, tenant_id: str, episode_id: str) -> Counter[str]:
        """Stored completions and responses: their Episode is named in the payload alone."""
        counts: Counter[str] = Counter()
        named = f'"episode_id":{json.dumps(episode_id)}'
        table = STORED_COMPLETIONS
        for row in await self._holding(table, tenant_id, named):
            if StoredCompletion.model_validate_json(row[1]).episode_id == episode_id:
                one = (table.c.tenant_id == tenant_id) & (table.c.id == row[0])
                counts[table.name] += await self._connection.change(delete(table).where(one))
                pair = STORED_COMPLETION_METADATA.c
                mine = (pair.tenant_id == tenant_id) & (pair.completion_id == row[0])
                await self._connection.change(delete(STORED_COMPLETION_METADATA).where(mine))
        table = STORED_RESPONSES
        for row in await self._holding(table, tenant_id, named):
            if StoredResponse.model_validate_json(row[1]).episode_id == episode_id:
                counts[table.name] += await self._connection.change(delete(table).where(table.c.id == row[0]))
        return counts

    async def _holding(self, table: Table, tenant_id: str, text: str) -> list[tuple[str, str]]:
        query = select(table.c.id, table.c.payload).where(
            table.c.tenant_id == tenant_id, table.c.payload.contains(text, autoescape=True)
        )
        return [(str(row.id), str(row.payload)) for row in await self._connection.rows(query)]


def _tables(column: str) -> Sequence[Table]:
    skipped = _KEPT | (_LAST if column == "tenant_id" else frozenset({"episodes"}))
    return [table for name, table in sorted(METADATA.tables.items()) if column in table.c and name not in skipped]
