"""Events between the tasks of a process and the processes of one machine, without a service.

Each topic is a small file in a folder that all processes share. Publishing adds one byte; while somebody
waits, the files' sizes are looked at every 25 ms. Watching SQLite's ``data_version`` instead would wake every
waiter for every commit of any process, and most commits are Turns and heartbeats that few wait for.
"""

import asyncio
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import structlog
from prometheus_client import CollectorRegistry

from store.event_metrics import EventMetrics
from store.events import TOPICS, Subscription, check_topics
from store.subscribers import Subscribers

log = structlog.get_logger(__name__)

POLL_SECONDS = 0.025
_LARGEST_FILE = 1 << 20


class LocalEvents:
    """Implements ``store.events.Events`` with one file for each topic in ``folder``."""

    def __init__(self, folder: Path, *, registry: CollectorRegistry) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._files = {topic: folder / topic for topic in TOPICS}
        self._seen = self._sizes()
        self._subscribers = Subscribers()
        self._metrics = EventMetrics(registry)
        self._poller: asyncio.Task[None] | None = None

    async def publish(self, topic: str, data: Mapping[str, Any] | None = None) -> None:
        """See ``store.events.Events``."""
        check_topics([topic])
        self._metrics.published.labels(topic).inc()
        self._subscribers.wake(topic)
        try:
            self._count_up(self._files[topic])
        except OSError as error:
            self._metrics.failures.inc()
            log.warning("event_not_published", topic=topic, error=str(error))

    @asynccontextmanager
    async def subscribe(self, topics: Collection[str]) -> AsyncIterator[Subscription]:
        """See ``store.events.Events``."""
        check_topics(topics)
        if self._poller is None:
            self._poller = asyncio.create_task(self._poll(), name="hone-local-events")
        # Look now, so that the newcomer is woken only by what comes after it.
        self._look()
        with self._subscribers.added(topics) as flag:
            yield flag

    async def close(self) -> None:
        """Stop looking at the files."""
        if self._poller is not None:
            self._poller.cancel()
            with suppress(asyncio.CancelledError):
                await self._poller
            self._poller = None

    async def _poll(self) -> None:
        while True:
            await self._subscribers.somebody_waits.wait()
            self._look()
            await asyncio.sleep(POLL_SECONDS)

    def _look(self) -> None:
        sizes = self._sizes()
        for topic, size in sizes.items():
            if size != self._seen[topic]:
                self._subscribers.wake(topic)
        self._seen = sizes

    def _sizes(self) -> dict[str, int]:
        return {topic: self._size(path) for topic, path in self._files.items()}

    @staticmethod
    def _size(path: Path) -> int:
        try:
            return path.stat().st_size
        except FileNotFoundError:
            return 0

    @classmethod
    def _count_up(cls, path: Path) -> None:
        mode = "wb" if cls._size(path) >= _LARGEST_FILE else "ab"
        with path.open(mode) as file:
            file.write(b".")
