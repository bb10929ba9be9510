"""StoredCompletions in the store."""

import json
from collections.abc import Mapping, Sequence

from sqlalchemy import delete, exists, insert, or_, select, tuple_

from core.message import Message
from core.stored_completion import StoredCompletion
from store.connection import Connection
from store.repositories.base import Repository
from store.tables.stored_completions import STORED_COMPLETION_METADATA, STORED_COMPLETIONS


class StoredCompletions(Repository[StoredCompletion]):
    """StoredCompletions by Tenant and id; no method crosses Tenants."""

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection, StoredCompletion, STORED_COMPLETIONS)

    async def add(self, completion: StoredCompletion, messages: Sequence[Message]) -> bool:
        """Add with what was asked, unless the Tenant has one with this id; whether it was added."""
        statement = self._connection.insert(STORED_COMPLETIONS).on_conflict_do_nothing()
        row = self._row(completion) | {"messages": json.dumps(list(messages), separators=(",", ":"))}
        added = await self._connection.change_returning(statement.returning(STORED_COMPLETIONS.c.id), [row])
        if added:
            await self._write_metadata(completion)
        return bool(added)

    async def get(self, tenant_id: str, completion_id: str, *, lock: bool = False) -> StoredCompletion:
        """One StoredCompletion; raises NotFound."""
        return await self._get(tenant_id, completion_id, lock=lock)

    async def messages(self, tenant_id: str, completion_id: str) -> list[Message]:
        """What was asked; raises NotFound."""
        query = select(STORED_COMPLETIONS.c.messages).where(self._is(tenant_id, completion_id))
        row = await self._connection.row(query)
        if row is None:
            raise self._missing(tenant_id, completion_id)
        messages: list[Message] = json.loads(row.messages)
        return messages

    async def list(
        self,
        tenant_id: str,
        *,
        model: str | None = None,
        metadata: Mapping[str, str] | None = None,
        after: str | None = None,
        limit: int = 20,
        newest_first: bool = False,
    ) -> list[StoredCompletion]:
        """A page in order of time; ``after`` is the id of the last one of the page before.

        ``model``: what was asked for or what answered. ``metadata``: pairs that all must be there. An ``after``
        that does not exist gives an empty page.
        """
        table, pair = STORED_COMPLETIONS.c, STORED_COMPLETION_METADATA.c
        query = self._select().where(table.tenant_id == tenant_id)
        if model is not None:
            query = query.where(or_(table.model == model, table.asked_model == model))
        for key, value in (metadata or {}).items():
            same = (pair.tenant_id == table.tenant_id) & (pair.completion_id == table.id)
            query = query.where(exists().where(same, pair.key == key, pair.value == value))
        age = tuple_(table.created_at, table.id)
        if after is not None:
            last = select(table.created_at, table.id).where(table.tenant_id == tenant_id, table.id == after)
            place = last.scalar_subquery()
            query = query.where(age < place if newest_first else age > place)
        order = [column.desc() if newest_first else column.asc() for column in (table.created_at, table.id)]
        return await self._all(query.order_by(*order).limit(limit))

    async def update(self, completion: StoredCompletion) -> None:
        """Replace, its metadata too; what was asked stays. Raises NotFound."""
        await self._update(completion)
        await self._delete_metadata(completion.tenant_id, completion.id)
        await self._write_metadata(completion)

    async def delete(self, tenant_id: str, completion_id: str) -> None:
        """Remove with all that belongs to it; raises NotFound."""
        gone = await self._connection.change(delete(STORED_COMPLETIONS).where(self._is(tenant_id, completion_id)))
        if gone == 0:
            raise self._missing(tenant_id, completion_id)
        await self._delete_metadata(tenant_id, completion_id)

    async def _write_metadata(self, completion: StoredCompletion) -> None:
        rows = [
            {"tenant_id": completion.tenant_id, "completion_id": completion.id, "key": key, "value": value}
            for key, value in completion.metadata.items()
        ]
        if rows:
            await self._connection.change(insert(STORED_COMPLETION_METADATA).values(rows))

    async def _delete_metadata(self, tenant_id: str, completion_id: str) -> None:
        pair = STORED_COMPLETION_METADATA.c
        mine = (pair.tenant_id == tenant_id) & (pair.completion_id == completion_id)
        await self._connection.change(delete(STORED_COMPLETION_METADATA).where(mine))
