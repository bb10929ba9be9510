"""The engine, transactions on it, and the attribution of what goes wrong in them.

SQLite: WAL, ``synchronous=NORMAL``, foreign keys on, and transactions that really begin where they should:
the driver's own BEGIN is switched off and ours is emitted. Source: SQLAlchemy, "Enabling Non-Legacy SQLite
Transactional Modes with the sqlite3 or aiosqlite driver".
"""

import asyncio
import errno
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, nullcontext
from pathlib import Path
from typing import Any

from sqlalchemy import URL, event, make_url
from sqlalchemy import Connection as SyncConnection
from sqlalchemy.exc import DBAPIError, IntegrityError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from core.errors import ConfigurationError, Conflict, StoreError, StoreFull
from store.connection import Connection
from store.uncut import uncut

BUSY_SECONDS = 10.0
"""How long a SQLite writer waits for the writers of other processes."""
_BEGIN = "hone_begin"
_DISK_FULL_SQLSTATE = "53100"


def create_engine(url: str) -> AsyncEngine:
    """An engine for ``sqlite+aiosqlite:///…`` or ``postgresql+asyncpg://…``.

    Raises ConfigurationError for any other URL; SQLite in memory is one, as no other process could see it.
    """
    parsed = make_url(url)
    if parsed.drivername == "postgresql+asyncpg":
        return _create_postgres_engine(parsed)
    path = sqlite_path(parsed)
    if path is None:
        raise ConfigurationError(
            f"store.url has driver '{parsed.drivername}' or names no file",
            hint="use sqlite+aiosqlite:////absolute/path or postgresql+asyncpg://user@host/name",
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    engine = create_async_engine(parsed, connect_args={"timeout": BUSY_SECONDS})
    event.listen(engine.sync_engine, "connect", _prepare_sqlite)
    event.listen(engine.sync_engine, "begin", _begin_sqlite)
    return engine


def _create_postgres_engine(url: URL) -> AsyncEngine:
    try:
        return create_async_engine(url, pool_size=10, max_overflow=20, pool_pre_ping=True)
    except ImportError as error:
        raise ConfigurationError(
            "store.url is PostgreSQL and asyncpg is not installed", hint="install the extra 'postgres'"
        ) from error


def sqlite_path(url: str | URL) -> Path | None:
    """The database file of a SQLite URL; None for any other URL."""
    parsed = make_url(url)
    if parsed.drivername != "sqlite+aiosqlite" or parsed.database in (None, "", ":memory:"):
        return None
    return Path(str(parsed.database))


def _prepare_sqlite(connection: Any, _record: Any) -> None:
    connection.isolation_level = None
    cursor = connection.cursor()
    # The time-out comes first: the others may already meet another process.
    cursor.execute(f"PRAGMA busy_timeout = {int(BUSY_SECONDS * 1000)}")
    cursor.execute("PRAGMA journal_mode = WAL")
    cursor.execute("PRAGMA synchronous = NORMAL")
    cursor.execute("PRAGMA foreign_keys = ON")
    cursor.close()


def _begin_sqlite(connection: SyncConnection) -> None:
    # A deferred transaction that reads and then writes can fail at once with "database is locked".
    connection.exec_driver_sql(connection.get_execution_options().get(_BEGIN, "BEGIN IMMEDIATE"))


class Database:
    """Transactions on one database.

    On SQLite the writers of this process queue up on a fair lock, because SQLite's own waiting is polling.
    """

    def __init__(self, url: str) -> None:
        self._engine = create_engine(url)
        self._readers = self._engine.execution_options(**{_BEGIN: "BEGIN DEFERRED"})
        self.is_sqlite = self._engine.dialect.name == "sqlite"
        self._write_lock = asyncio.Lock()
        self._writer: asyncio.Task[Any] | None = None

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Connection]:
        """Commits on a clean exit, rolls back otherwise.

        Raises StoreError (or a class below it, or Conflict for a broken constraint) for database failures.
        """
        async with self._turn_to_write(), _begun(self._engine) as raw:
            yield Connection(raw, writable=True)

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[Connection]:
        """A transaction that only reads: on SQLite one snapshot, beside any writer."""
        async with _begun(self._readers) as raw:
            yield Connection(raw, writable=False)

    def _turn_to_write(self) -> AbstractAsyncContextManager[None]:
        return self._alone() if self.is_sqlite else nullcontext()

    @asynccontextmanager
    async def _alone(self) -> AsyncIterator[None]:
        task = asyncio.current_task()
        if self._writer is not None and self._writer is task:
            raise StoreError("a task began a transaction inside its own transaction: it would wait for itself")
        async with self._write_lock:
            self._writer = task
            try:
                yield
            finally:
                self._writer = None

    async def close(self) -> None:
        """Close all connections."""
        await self._engine.dispose()


@asynccontextmanager
async def _begun(engine: AsyncEngine) -> AsyncIterator[AsyncConnection]:
    begun = _begun_uncut if engine.dialect.name == "sqlite" else AsyncEngine.begin
    try:
        async with AsyncExitStack() as stack:
            try:
                raw = await stack.enter_async_context(begun(engine))
            except OSError as error:
                # Only here: an OSError out of the caller's block is not the database's.
                raise translate(error) from error
            yield raw
    except SQLAlchemyError as error:
        raise translate(error) from error


@asynccontextmanager
async def _begun_uncut(engine: AsyncEngine) -> AsyncIterator[AsyncConnection]:
    """As ``engine.begin()``, for a database whose driver does not notice that a caller was cancelled."""
    raw = await uncut(_opened(engine), undo=_rolled_back)
    try:
        yield raw
    except BaseException:
        await uncut(_rolled_back(raw))
        raise
    await uncut(_committed(raw))


async def _opened(engine: AsyncEngine) -> AsyncConnection:
    raw = await engine.connect().start()
    try:
        await raw.begin()
    except BaseException:
        await raw.close()
        raise
    return raw


async def _rolled_back(raw: AsyncConnection) -> None:
    try:
        await raw.rollback()
    finally:
        await raw.close()


async def _committed(raw: AsyncConnection) -> None:
    try:
        await raw.commit()
    finally:
        await raw.close()


def translate(error: Exception) -> Exception:
    """The error of ours that says what a database failure means to the caller."""
    text = str(error.orig) if isinstance(error, DBAPIError) else str(error)
    if isinstance(error, IntegrityError):
        return Conflict(f"the database refused the change: {text}")
    if isinstance(error, PoolTimeout):
        return StoreError("no database connection became free", hint="too many transactions are open at once")
    sqlstate = getattr(getattr(error, "orig", None), "sqlstate", None)
    full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
    if full or "disk is full" in text or sqlstate == _DISK_FULL_SQLSTATE:
        return StoreFull(f"the database has no room left: {text}", hint="free disk space and try again")
    if "no such table" in text or sqlstate == "42P01":
        return StoreError(f"the database has no tables: {text}", hint="run the migrations first")
    return StoreError(f"the database failed: {type(error).__name__}: {text}")
