"""Fixtures for every test: real PostgreSQL and Redis, migrated databases, open Stores."""

import asyncio
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from core.config.load import load_config
from core.config.schema import HoneConfig
from store.migrate import upgrade
from store.store import Store
from tests.gateway_process import no_gateway_left
from tests.services import postgres_database, postgres_server, redis_server

OpenStore = Callable[..., Awaitable[Store]]

# How long an example takes says how busy the machine is.
settings.register_profile("hone", deadline=None)
settings.load_profile("hone")


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    """An empty PostgreSQL database of this test process alone."""
    with postgres_server() as server, postgres_database(server) as url:
        yield url


@pytest.fixture(scope="session")
def redis_url() -> Iterator[str]:
    """A running Redis."""
    with redis_server() as url:
        yield url


@pytest.fixture(scope="session")
def _migrated_postgres(postgres_url: str) -> Iterator[tuple[str, str]]:
    with postgres_database(postgres_url) as template:
        upgrade(template)
        yield postgres_url, template.rpartition("/")[2]


@pytest.fixture(scope="session")
def _migrated_sqlite(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("sqlite") / "template.db"
    upgrade(f"sqlite+aiosqlite:///{path}")
    return path


@pytest.fixture
def fresh_postgres_url(_migrated_postgres: tuple[str, str]) -> Iterator[str]:
    """A migrated PostgreSQL database of this test alone."""
    server, template = _migrated_postgres
    with postgres_database(server, template=template) as url:
        yield url


@pytest.fixture
def fresh_sqlite_url(_migrated_sqlite: Path, tmp_path: Path) -> str:
    """A migrated SQLite file of this test alone."""
    copy = tmp_path / "hone.db"
    shutil.copy(_migrated_sqlite, copy)
    return f"sqlite+aiosqlite:///{copy}"


@pytest.fixture(params=["sqlite", "postgres"])
def database_url(request: pytest.FixtureRequest) -> str:
    """A migrated database of this test alone, on SQLite and on PostgreSQL in turn."""
    url: str = request.getfixturevalue(f"fresh_{request.param}_url")
    return url


@pytest.fixture
def make_config(tmp_path: Path) -> Callable[..., HoneConfig]:
    """Builds a HoneConfig under ``tmp_path`` from dotted keys."""

    def make(overrides: dict[str, Any] | None = None) -> HoneConfig:
        values = {"data_dir": str(tmp_path / "data")} | (overrides or {})
        return load_config(environment={"HONE_CONFIG": "/dev/null"}, overrides=values)

    return make


@pytest.fixture
async def open_store(make_config: Callable[..., HoneConfig]) -> AsyncIterator[OpenStore]:
    """Opens Stores on a database URL, and closes them at the end of the test."""
    async with AsyncExitStack() as stack:

        async def open_one(url: str, overrides: dict[str, Any] | None = None) -> Store:
            store = await Store.open(make_config({"store.url": url} | (overrides or {})))
            stack.push_async_callback(store.close)
            return store

        yield open_one


@pytest.fixture
async def store(database_url: str, open_store: OpenStore) -> Store:
    """A Store on SQLite and on PostgreSQL in turn."""
    return await open_store(database_url)


@pytest.fixture
async def started() -> AsyncIterator[list[asyncio.subprocess.Process]]:
    """Gateway processes of a test, none of which outlives it."""
    async with no_gateway_left() as processes:
        yield processes
