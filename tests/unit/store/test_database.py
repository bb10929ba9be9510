"""Transactions on SQLite, and what database failures are called."""

import asyncio
import errno
from pathlib import Path

import pytest
from sqlalchemy import text
from sqlalchemy.exc import IntegrityError, OperationalError

from core.errors import ConfigurationError, Conflict, StoreError, StoreFull
from core.policy import Base
from store.database import Database, create_engine, translate
from store.store import Store
from tests.conftest import OpenStore


@pytest.fixture
async def sqlite_store(fresh_sqlite_url: str, open_store: OpenStore) -> Store:
    """A Store on a migrated SQLite file."""
    return await open_store(fresh_sqlite_url)


@pytest.mark.parametrize(
    "url", ["sqlite+aiosqlite://", "sqlite+aiosqlite:///:memory:", "sqlite:///x.db", "mysql://host/x"]
)
def test_other_databases_are_refused(url: str) -> None:
    """A URL that Hone cannot use is a configuration error that names the key."""
    with pytest.raises(ConfigurationError, match=r"store\.url"):
        create_engine(url)


async def test_sqlite_is_set_up(fresh_sqlite_url: str) -> None:
    """Every connection has WAL, NORMAL, a busy time-out and foreign keys."""
    engine = create_engine(fresh_sqlite_url)
    async with engine.connect() as connection:
        found = [
            (await connection.execute(text(f"PRAGMA {name}"))).scalar()
            for name in ("journal_mode", "synchronous", "busy_timeout", "foreign_keys")
        ]
    await engine.dispose()
    assert found == ["wal", 1, 10_000, 1]


async def test_a_write_transaction_is_alone_from_its_beginning(fresh_sqlite_url: str) -> None:
    """BEGIN IMMEDIATE really happens: a second process cannot begin to write until the first has ended."""
    first, second = Database(fresh_sqlite_url), Database(fresh_sqlite_url)
    begun = asyncio.Event()

    async def write() -> None:
        async with second.transaction():
            begun.set()

    async with first.transaction():
        other = asyncio.create_task(write())
        async with second.reading() as reader:
            assert await reader.row(text("SELECT count(*) FROM jobs")) is not None
        await asyncio.sleep(0.2)
        assert not begun.is_set()
    await other
    await first.close()
    await second.close()


async def test_a_reader_keeps_its_snapshot(sqlite_store: Store) -> None:
    """What is committed during a reading transaction shows in the next one."""
    async with sqlite_store.reading() as reader:
        assert await reader.bases.list() == []
        async with sqlite_store.transaction() as work:
            await work.bases.put(Base(name="smol", path="/x", fingerprint="f"))
        assert await reader.bases.list() == []
    async with sqlite_store.reading() as reader:
        assert len(await reader.bases.list()) == 1


async def test_a_transaction_inside_a_transaction_is_refused(sqlite_store: Store) -> None:
    """Instead of waiting for itself, a task gets a StoreError; afterwards the store works."""
    with pytest.raises(StoreError, match="inside its own transaction"):
        async with sqlite_store.transaction():
            await sqlite_store.queue.enqueue("work", {})
    await sqlite_store.queue.enqueue("work", {})


async def test_a_cancelled_writer_leaves_the_store_usable(sqlite_store: Store) -> None:
    """Cancelling a task inside a transaction undoes it and lets the next writer in."""
    inside = asyncio.Event()

    async def write() -> None:
        async with sqlite_store.transaction() as work:
            await work.bases.put(Base(name="smol", path="/x", fingerprint="f"))
            inside.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(write())
    await inside.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    async with sqlite_store.transaction() as work:
        assert await work.bases.list() == []


async def test_an_unmigrated_database_says_so(tmp_path: Path, open_store: OpenStore) -> None:
    """The error of a missing table tells the operator to migrate."""
    store = await open_store(f"sqlite+aiosqlite:///{tmp_path}/empty.db")
    with pytest.raises(StoreError, match="no tables") as caught:
        await store.queue.enqueue("work", {})
    assert caught.value.hint == "run the migrations first"


async def test_an_unreachable_database_is_a_store_error(open_store: OpenStore) -> None:
    """A PostgreSQL that refuses connections is a StoreError, not a bare OSError."""
    store = await open_store("postgresql+asyncpg://nobody@127.0.0.1:1/none")
    with pytest.raises(StoreError, match="the database failed"):
        await store.queue.enqueue("work", {})


def test_failures_get_their_names() -> None:
    """A broken constraint is a Conflict; a full disk is StoreFull, whoever reports it."""
    full = OperationalError("INSERT", {}, Exception("database or disk is full"))
    assert isinstance(translate(full), StoreFull)
    assert isinstance(translate(OSError(errno.ENOSPC, "No space left on device")), StoreFull)
    assert isinstance(translate(IntegrityError("INSERT", {}, Exception("FOREIGN KEY"))), Conflict)
    other = translate(OperationalError("INSERT", {}, Exception("database is locked")))
    assert type(other) is StoreError


async def test_the_callers_own_errors_pass_unchanged(sqlite_store: Store) -> None:
    """A missing file inside a transaction is not blamed on the database."""
    with pytest.raises(FileNotFoundError):
        async with sqlite_store.transaction():
            raise FileNotFoundError("adapter.safetensors")
