"""Redis dies and comes back: events resume, and the queue never loses a job."""

import asyncio
from collections.abc import Iterator

import pytest
from prometheus_client import CollectorRegistry

from core.job import JobStatus
from store.events import JOBS, VERSIONS
from store.redis_events import RedisEvents
from tests.conftest import OpenStore
from tests.services import RedisServer


@pytest.fixture
def redis() -> Iterator[RedisServer]:
    """A Redis of this test alone."""
    server = RedisServer()
    server.start()
    yield server
    server.remove()


async def test_events_resume_after_a_crash_of_redis(redis: RedisServer) -> None:
    """Publishing to a dead Redis is counted and raises nothing; after its return both sides are connected again."""
    registry = CollectorRegistry()
    here = RedisEvents(redis.url, registry=registry)
    there = RedisEvents(redis.url, registry=CollectorRegistry())
    await here.start()
    await there.start()
    async with here.subscribe([VERSIONS]) as own, there.subscribe([VERSIONS]) as remote:
        await here.publish(VERSIONS)
        assert await remote.wait(30)
        assert await own.wait(30)
        redis.kill()
        await here.publish(VERSIONS)
        assert await own.wait(30)
        assert registry.get_sample_value("hone_events_publish_failures_total") == 1.0
        redis.start()
        # The new connection wakes by itself: what was published meanwhile was not heard.
        assert await remote.wait(30)
        while await remote.wait(0.5):
            """Both connections may wake it."""
        await here.publish(VERSIONS)
        assert await remote.wait(30)
    await here.close()
    await there.close()


async def test_a_store_opens_while_redis_is_away(
    redis: RedisServer, fresh_postgres_url: str, open_store: OpenStore
) -> None:
    """Without Redis the queue works all the same."""
    redis.kill()
    store = await open_store(fresh_postgres_url, {"store.redis_url": redis.url})
    job = await store.queue.enqueue("work", {})
    (claimed,) = await store.queue.claim(["work"], "a", lease_seconds=60)
    assert claimed.id == job.id


async def test_no_job_is_lost_while_redis_is_away(
    redis: RedisServer, fresh_postgres_url: str, open_store: OpenStore
) -> None:
    """Jobs added before, during and after an outage are all done, each once."""
    producer = await open_store(fresh_postgres_url, {"store.redis_url": redis.url})
    consumer = await open_store(fresh_postgres_url, {"store.redis_url": redis.url})
    done: list[int] = []

    async def consume() -> None:
        async with consumer.events.subscribe([JOBS]) as subscription:
            while len(done) < 30:
                jobs = await consumer.queue.claim(["work"], "a", lease_seconds=60, limit=4)
                for job in jobs:
                    await consumer.queue.complete(job, {})
                    done.append(job.payload["n"])
                if not jobs:
                    await subscription.wait(0.2)

    task = asyncio.create_task(consume())
    for number in range(30):
        if number == 10:
            redis.kill()
        if number == 20:
            redis.start()
        await producer.queue.enqueue("work", {"n": number})
    await task
    assert sorted(done) == list(range(30))
    assert (await producer.queue.depth())[JobStatus.DONE] == 30
