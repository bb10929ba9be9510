"""Holdings: everything that is stored about a Tenant, page by page, for an export."""

import json
from collections.abc import Sequence
from typing import Any

from sqlalchemy import Select, Table, select, tuple_

from store.connection import Connection
from store.repositories.private_tasks import in_domain_of, tasks_of_tenant
from store.tables.episodes import EPISODES
from store.tables.metadata import METADATA
from store.tables.tasks import TASKS

_SECRET = frozenset({"key_hash", "previous_hash"})
_SKIPPED = frozenset({"lineage"})
_BY_NAME = frozenset({"tenants", "domains", "tasks"})
"""Without a column that says whose they are."""
_PAGE = 200


class Holdings:
    """Reads rows; a table with a ``tenant_id`` or ``episode_id`` column belongs to the Tenant by that column."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    @staticmethod
    def tables() -> Sequence[str]:
        """Names of the tables that can hold something of a Tenant; ``tenants`` itself is among them."""
        return [name for name, table in sorted(METADATA.tables.items()) if _belongs(table)]

    async def page(
        self, table: str, tenant_id: str, after: tuple[Any, ...] | None
    ) -> tuple[list[dict[str, Any]], Any]:
        """Rows of a table behind the key ``after`` (None: from the start), and the key of the last; None: no more.

        Turns come without their token arrays: read those with ``work.turns``.
        """
        found = METADATA.tables[table]
        keys = list(found.primary_key.columns)
        if table == "tasks":
            return await self._tasks(tenant_id, after)
        query = _of_tenant(found, tenant_id).order_by(*keys).limit(_PAGE)
        if after is not None:
            query = query.where(tuple_(*keys) > tuple_(*after))
        rows = await self._connection.rows(query)
        last = tuple(rows[-1]._mapping[key] for key in keys) if len(rows) == _PAGE else None
        return [_shown(found, row._mapping) for row in rows], last

    async def _tasks(self, tenant_id: str, after: tuple[Any, ...] | None) -> tuple[list[dict[str, Any]], Any]:
        ids = await tasks_of_tenant(self._connection, tenant_id)
        page = [one for one in ids if after is None or one > after[0]][:_PAGE]
        rows = await self._connection.rows(select(TASKS).where(TASKS.c.id.in_(page)).order_by(TASKS.c.id))
        return [_shown(TASKS, row._mapping) for row in rows], (page[-1],) if len(page) == _PAGE else None


def _belongs(table: Table) -> bool:
    return table.name not in _SKIPPED and (
        "tenant_id" in table.c or "episode_id" in table.c or table.name in _BY_NAME
    )


def _of_tenant(table: Table, tenant_id: str) -> Select[Any]:
    if table.name == "tenants":
        return select(table).where(table.c.id == tenant_id)
    if table.name == "domains":
        return select(table).where(in_domain_of(table.c.name, tenant_id))
    if "tenant_id" in table.c:
        return select(table).where(table.c.tenant_id == tenant_id)
    mine = select(EPISODES.c.id).where(EPISODES.c.tenant_id == tenant_id)
    return select(table).where(table.c.episode_id.in_(mine))


def _shown(table: Table, row: Any) -> dict[str, Any]:
    shown = {
        column.name: row[column]
        for column in table.c
        if column.name not in ("payload", "schema_version", "tokens", "tokens_blob")
    }
    if "payload" in table.c:
        shown |= json.loads(row[table.c.payload])
    return {name: value for name, value in shown.items() if name not in _SECRET}
