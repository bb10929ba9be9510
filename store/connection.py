"""One open transaction, as repositories see it."""

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import CursorResult, Executable, Row, Table, func, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncConnection

from core.errors import StoreError
from store.uncut import uncut

Values = Mapping[str, Any]


class Connection:
    """Runs statements inside one transaction; refuses changes when the transaction only reads."""

    def __init__(self, raw: AsyncConnection, *, writable: bool) -> None:
        self._raw = raw
        self._writable = writable
        self._is_sqlite = raw.dialect.name == "sqlite"

    async def rows(self, statement: Executable) -> Sequence[Row[Any]]:
        """All rows of a query."""
        return (await self._run(statement)).all()

    async def row(self, statement: Executable) -> Row[Any] | None:
        """The first row of a query, if there is one."""
        return (await self._run(statement)).first()

    async def change(self, statement: Executable) -> int:
        """Run a change; the number of rows that it touched."""
        self._check_writable()
        return (await self._run(statement)).rowcount

    async def change_returning(
        self, statement: Executable, values: Sequence[Values] | None = None
    ) -> Sequence[Row[Any]]:
        """Run a change that has a RETURNING clause, once or for many rows of ``values``."""
        self._check_writable()
        if values is None:
            return (await self._run(statement)).all()
        if not values:
            return []
        return (await self._run(statement, [dict(row) for row in values])).all()

    def insert(self, table: Table) -> sqlite.Insert | postgresql.Insert:
        """INSERT in the database's own dialect, which knows ON CONFLICT."""
        return sqlite.insert(table) if self._is_sqlite else postgresql.insert(table)

    async def bound_idleness(self, seconds: int) -> None:
        """Have PostgreSQL end this transaction, and give back its locks, when its client says nothing for so long.

        SQLite has no such bound: there, a process that freezes in a transaction holds up every other one.
        """
        if not self._is_sqlite:
            timeout = func.set_config("idle_in_transaction_session_timeout", f"{int(seconds)}s", True)
            await self._raw.execute(select(timeout))

    async def exclusive(self, number: int) -> None:
        """Let no other transaction pass the same ``number`` before this one ends. SQLite has one writer anyway."""
        self._check_writable()
        if not self._is_sqlite:
            await self._raw.execute(select(func.pg_advisory_xact_lock(number)))

    async def _run(self, statement: Executable, values: Sequence[dict[str, Any]] | None = None) -> CursorResult[Any]:
        running = self._raw.execute(statement, values)
        return await (uncut(running) if self._is_sqlite else running)

    def _check_writable(self) -> None:
        if not self._writable:
            raise StoreError("a transaction of reading() takes no changes; use transaction()")
