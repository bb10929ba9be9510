"""The migrations and the table definitions say the same, on SQLite and on PostgreSQL."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, inspect

from core.errors import StoreError
from store.migrate import SCRIPTS, current_revision, head_revision, run_in_transaction, upgrade
from store.tables import METADATA
from tests.services import postgres_database


@pytest.fixture(params=["sqlite", "postgres"])
def empty_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A database without tables, of each kind in turn."""
    if request.param == "sqlite":
        yield f"sqlite+aiosqlite:///{tmp_path}/folder/new.db"
        return
    with postgres_database(request.getfixturevalue("postgres_url")) as url:
        yield url


def differences(connection: Connection) -> list[object]:
    options = {"compare_type": True, "compare_server_default": True}
    return list(compare_metadata(MigrationContext.configure(connection, opts=options), METADATA))


def test_migrations_and_tables_agree(empty_url: str) -> None:
    """After all migrations nothing is left to change."""
    assert current_revision(empty_url) is None
    upgrade(empty_url)
    assert current_revision(empty_url) == head_revision()
    assert run_in_transaction(empty_url, differences) == []


def test_migrating_twice_changes_nothing(empty_url: str) -> None:
    """An upgrade at head is a no-op."""
    upgrade(empty_url)
    upgrade(empty_url)
    assert current_revision(empty_url) == head_revision()


def test_processes_may_migrate_at_once(empty_url: str) -> None:
    """Several that start together on an empty database all succeed."""
    with ThreadPoolExecutor(max_workers=4) as executor:
        list(executor.map(upgrade, [empty_url] * 4))
    assert run_in_transaction(empty_url, differences) == []


async def test_migrating_works_inside_an_event_loop(empty_url: str) -> None:
    """The call blocks and needs no loop of its own from the caller."""
    upgrade(empty_url)
    assert current_revision(empty_url) == head_revision()


def test_downgrading_leaves_nothing(empty_url: str) -> None:
    """The way back to an empty database works, and forward again."""

    def down(connection: Connection) -> list[str]:
        config = Config()
        config.set_main_option("script_location", str(SCRIPTS))
        config.attributes["connection"] = connection
        command.downgrade(config, "base")
        return inspect(connection).get_table_names()

    upgrade(empty_url)
    assert run_in_transaction(empty_url, down) == ["alembic_version"]
    upgrade(empty_url)
    assert run_in_transaction(empty_url, differences) == []


def test_every_revision_bounds_its_wait_for_locks() -> None:
    """A migration of a busy PostgreSQL gives up rather than hold up all queries."""
    config = Config()
    config.set_main_option("script_location", str(SCRIPTS))
    for revision in ScriptDirectory.from_config(config).walk_revisions():
        assert "SET LOCAL lock_timeout" in Path(revision.path).read_text()


def test_an_unreachable_database_is_a_store_error() -> None:
    """Nobody listens: StoreError, with the driver's reason."""
    with pytest.raises(StoreError, match="the database failed"):
        upgrade("postgresql+asyncpg://nobody@127.0.0.1:1/none")
