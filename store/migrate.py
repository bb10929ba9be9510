"""Brings a database to the newest schema with Alembic, whose scripts are in ``migrations/``."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, text

from core.errors import StoreError
from store.database import create_engine, translate

SCRIPTS = Path(__file__).resolve().parent.parent / "migrations"
_ADVISORY_LOCK = 0x686F6E65
"""Any number, the same in every process: who holds it migrates, others wait ("hone")."""

ResultT = TypeVar("ResultT")


def upgrade(database_url: str) -> None:
    """Bring the database to ``head_revision()`` in one transaction; does nothing when it is there already.

    Safe to call from several processes at once. Raises StoreError.
    """

    def bring_to_head(connection: Connection) -> None:
        if connection.dialect.name == "postgresql":
            connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _ADVISORY_LOCK})
        command.upgrade(_config(connection), "head")

    run_in_transaction(database_url, bring_to_head)


def head_revision() -> str:
    """The newest revision that this Hone brings."""
    head = ScriptDirectory.from_config(_config(None)).get_current_head()
    if head is None:
        raise StoreError(f"{SCRIPTS} holds no migration", hint="the installation is incomplete")
    return head


def current_revision(database_url: str) -> str | None:
    """The database's revision; None for one that was never migrated. Raises StoreError."""
    return run_in_transaction(
        database_url, lambda connection: MigrationContext.configure(connection).get_current_revision()
    )


def run_in_transaction(database_url: str, work: Callable[[Connection], ResultT]) -> ResultT:
    """Run ``work`` on a connection whose transaction commits when it returns; raises StoreError."""

    async def run() -> ResultT:
        engine = create_engine(database_url)
        try:
            async with engine.begin() as connection:
                return await connection.run_sync(work)
        finally:
            await engine.dispose()

    # In a thread of its own: the caller may have an event loop running, and both drivers need one.
    with ThreadPoolExecutor(max_workers=1) as executor:
        try:
            return executor.submit(asyncio.run, run()).result()
        except Exception as error:
            raise translate(error) from error


def _config(connection: Connection | None) -> Config:
    config = Config()
    config.set_main_option("script_location", str(SCRIPTS).replace("%", "%%"))
    config.attributes["connection"] = connection
    return config
