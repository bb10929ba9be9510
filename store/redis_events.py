"""Events over Redis pub/sub, between machines."""

import asyncio
import json
import random
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any

import structlog
from prometheus_client import CollectorRegistry

from store.event_metrics import EventMetrics
from store.events import TOPICS, Subscription, check_topics
from store.redis_client import redis_client
from store.subscribers import Subscribers

log = structlog.get_logger(__name__)

_PREFIX = "hone:"
_ANSWER_SECONDS = 1.0
"""Longest wait for Redis before publishing or connecting counts as failed."""
_FIRST_CONNECTION_SECONDS = 2.0
_LONGEST_PAUSE_SECONDS = 2.0


class RedisEvents:
    """Implements ``store.events.Events``. While Redis is away, events still reach this process."""

    def __init__(self, url: str, *, registry: CollectorRegistry) -> None:
        self._client, self._transport_errors = redis_client(url, answer_seconds=_ANSWER_SECONDS)
        self._subscribers = Subscribers()
        self._metrics = EventMetrics(registry)
        self._connected = asyncio.Event()
        self._listener: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Begin to listen; waits a moment for the first connection, and goes on without it."""
        self._listener = asyncio.create_task(self._listen(), name="hone-redis-events")
        with suppress(TimeoutError):
            async with asyncio.timeout(_FIRST_CONNECTION_SECONDS):
                await self._connected.wait()

    async def publish(self, topic: str, data: Mapping[str, Any] | None = None) -> None:
        """See ``store.events.Events``."""
        check_topics([topic])
        self._metrics.published.labels(topic).inc()
        self._subscribers.wake(topic)
        try:
            await self._client.publish(_PREFIX + topic, json.dumps(dict(data or {}), default=str))
        except self._transport_errors as error:
            self._metrics.failures.inc()
            log.warning("event_not_published", topic=topic, error=str(error))

    @asynccontextmanager
    async def subscribe(self, topics: Collection[str]) -> AsyncIterator[Subscription]:
        """See ``store.events.Events``."""
        check_topics(topics)
        with self._subscribers.added(topics) as flag:
            yield flag

    async def close(self) -> None:
        """Stop listening and close the connections."""
        if self._listener is not None:
            self._listener.cancel()
            with suppress(asyncio.CancelledError):
                await self._listener
            self._listener = None
        await self._client.aclose()

    async def _listen(self) -> None:
        failures = 0
        while True:
            try:
                await self._listen_once()
            except self._transport_errors as error:
                if self._connected.is_set():
                    failures = 0
                # Logged once for each outage, however long it is.
                if failures == 0:
                    log.warning("events_disconnected", error=str(error))
            failures += 1
            self._connected.clear()
            pause = min(_LONGEST_PAUSE_SECONDS, 0.05 * 2.0 ** min(failures, 10))
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))

    async def _listen_once(self) -> None:
        """Listen on one connection until it breaks for good."""
        async with self._client.pubsub() as channel:
            await channel.subscribe(*(_PREFIX + topic for topic in TOPICS))
            while True:
                message = await channel.get_message(timeout=_ANSWER_SECONDS)
                if message is not None:
                    self._hear(message["type"], message["channel"].decode().removeprefix(_PREFIX))

    def _hear(self, kind: str, topic: str) -> None:
        # A "subscribe" also comes when the client has silently reconnected: earlier events were not heard.
        if kind in ("message", "subscribe"):
            self._subscribers.wake(topic)
        if kind == "subscribe" and topic == TOPICS[-1]:
            log.info("events_connected")
            self._metrics.connections.inc()
            self._connected.set()
