"""Store: the one door to everything durable."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from prometheus_client import CollectorRegistry

from core.config.schema import HoneConfig
from store.blobs import Blobs
from store.counters import Counters
from store.database import Database, sqlite_path
from store.events import Events
from store.local_counters import LocalCounters
from store.local_events import LocalEvents
from store.queue import JobQueue
from store.redis_counters import RedisCounters
from store.redis_events import RedisEvents
from store.unit_of_work import UnitOfWork


class Store:
    """Transactions, the job queue, events, shared counters and blobs of one installation."""

    def __init__(
        self, *, database: Database, events: Events, blobs: Blobs, counters: Counters, inline_bytes: int
    ) -> None:
        self._database = database
        self._inline_bytes = inline_bytes
        self.events = events
        self.blobs = blobs
        self.counters = counters
        self.queue = JobQueue(database, events)

    @classmethod
    async def open(cls, config: HoneConfig, *, registry: CollectorRegistry | None = None) -> "Store":
        """Connect to what the configuration names; it does not migrate (see ``store.migrate``).

        Raises ConfigurationError for a database URL that Hone does not know, and StoreError.
        """
        database = Database(config.database_url)
        blobs = Blobs.open(config.blobs_url)
        events = await _open_events(config, registry or CollectorRegistry())
        counters = _open_counters(config)
        return cls(
            database=database, events=events, blobs=blobs, counters=counters, inline_bytes=config.store.inline_bytes
        )

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[UnitOfWork]:
        """Commits on a clean exit, rolls back otherwise. Publish events after the block, not inside it.

        On SQLite one transaction runs at a time, so keep slow work out of it; a task that begins a second one
        inside the first gets a StoreError.
        """
        async with self._database.transaction() as connection:
            yield UnitOfWork(connection, blobs=self.blobs, inline_bytes=self._inline_bytes)

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[UnitOfWork]:
        """A transaction that only reads, and on SQLite waits for no writer; changes raise StoreError."""
        async with self._database.reading() as connection:
            yield UnitOfWork(connection, blobs=self.blobs, inline_bytes=self._inline_bytes)

    async def close(self) -> None:
        """Close connections and end background work."""
        await self.events.close()
        await self.counters.close()
        await self._database.close()


async def _open_events(config: HoneConfig, registry: CollectorRegistry) -> Events:
    redis_url = config.store.redis_url.get_secret_value()
    if redis_url:
        events = RedisEvents(redis_url, registry=registry)
        await events.start()
        return events
    return LocalEvents(_events_folder(config), registry=registry)


def _open_counters(config: HoneConfig) -> Counters:
    redis_url = config.store.redis_url.get_secret_value()
    return RedisCounters(redis_url) if redis_url else LocalCounters()


def _events_folder(config: HoneConfig) -> Path:
    # Beside the database, so that all processes that share a SQLite file share its events.
    database = sqlite_path(config.database_url)
    if database is not None:
        return database.with_name(database.name + "-events")
    return config.data_dir.expanduser().absolute() / "events"
