"""Tasks in the store."""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Select, func, select

from core.task import Split, Task
from store.connection import Connection
from store.repositories.asked_prompts import AskedPrompts
from store.repositories.base import Repository
from store.tables.tasks import TASKS


class Tasks(Repository[Task]):
    """Tasks by id; the id is a hash of the content, so the same Task is kept once."""

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection, Task, TASKS)

    async def add_many(self, tasks: Sequence[Task]) -> int:
        """Add those not known yet; the number of new ones.

        Raises TaskError when a held-out one, or a near-duplicate of its prompt, was trained on.
        """
        await AskedPrompts(self._connection).hold_out([task for task in tasks if task.split == "heldout"])
        return await self._add_new(tasks)

    async def get(self, task_id: str) -> Task:
        """One Task; raises NotFound."""
        return await self._get(task_id)

    async def ids(self, domain: str | None = None, split: Split | None = None) -> list[str]:
        """Ids in ascending order: the basis of a reproducible choice."""
        rows = await self._connection.rows(self._matching(select(TASKS.c.id), domain, split))
        # Sorted here: a PostgreSQL collation may order otherwise than Python and SQLite do.
        return sorted(row.id for row in rows)

    async def list(
        self, domain: str | None = None, split: Split | None = None, limit: int = 100, offset: int = 0
    ) -> list[Task]:
        """A page of Tasks in order of id."""
        query = self._matching(self._select(), domain, split)
        return await self._all(query.order_by(TASKS.c.id).limit(limit).offset(offset))

    async def count(self, domain: str | None = None, split: Split | None = None) -> int:
        """How many there are."""
        row = await self._connection.row(self._matching(select(func.count().label("n")), domain, split))
        return 0 if row is None else int(row.n)

    def _matching(self, query: Select[Any], domain: str | None, split: Split | None) -> Select[Any]:
        return self._where(query.select_from(TASKS), domain=domain, split=split)
