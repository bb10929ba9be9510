"""The contract of Events: local files and Redis, within one process and across two."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from store.events import JOBS, VERSIONS, Events
from store.local_events import LocalEvents
from store.redis_events import RedisEvents

LONG = 30.0
SHORT = 0.2


@pytest.fixture(params=["local", "redis"])
async def pair(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[tuple[Events, Events]]:
    """Two Events objects that meet only through their transport, as those of two processes do."""
    ends: list[Events] = []
    for _ in range(2):
        if request.param == "local":
            ends.append(LocalEvents(tmp_path / "events", registry=CollectorRegistry()))
        else:
            remote = RedisEvents(request.getfixturevalue("redis_url"), registry=CollectorRegistry())
            await remote.start()
            ends.append(remote)
    yield ends[0], ends[1]
    for end in ends:
        await end.close()


async def test_a_publisher_wakes_its_own_process_and_another(pair: tuple[Events, Events]) -> None:
    """Whoever watches the topic wakes, in the publisher's process and in the other one."""
    here, there = pair
    async with here.subscribe([JOBS]) as own, there.subscribe([JOBS, VERSIONS]) as remote:
        waiting = [asyncio.create_task(own.wait(LONG)), asyncio.create_task(remote.wait(LONG))]
        await asyncio.sleep(0)
        await here.publish(JOBS, {"job": "job_a"})
        assert await asyncio.gather(*waiting) == [True, True]


async def test_an_event_between_subscribing_and_waiting_is_not_missed(pair: tuple[Events, Events]) -> None:
    """The wake-up is kept until somebody waits, then used up."""
    here, there = pair
    async with there.subscribe([JOBS]) as subscription:
        await here.publish(JOBS)
        await here.publish(JOBS)
        assert await subscription.wait(LONG)
        while await subscription.wait(SHORT):
            """A second wake-up for the second event is allowed."""
        assert not await subscription.wait(SHORT)


async def test_other_topics_do_not_wake(pair: tuple[Events, Events]) -> None:
    """A subscription hears its own topics only."""
    here, there = pair
    async with there.subscribe([VERSIONS]) as deaf, there.subscribe([JOBS]) as hearing:
        await here.publish(JOBS)
        assert await hearing.wait(LONG)
        assert not await deaf.wait(0)


async def test_waiting_ends_at_its_time_out(pair: tuple[Events, Events]) -> None:
    """Nothing happened: False."""
    async with pair[0].subscribe([JOBS]) as subscription:
        assert not await subscription.wait(0.01)
        assert not await subscription.wait(0)


async def test_every_subscription_wakes(pair: tuple[Events, Events]) -> None:
    """Many who wait for the same topic all wake from one event."""
    here, there = pair

    async def wait() -> bool:
        async with there.subscribe([JOBS]) as subscription:
            ready.release()
            return await subscription.wait(LONG)

    ready = asyncio.Semaphore(0)
    tasks = [asyncio.create_task(wait()) for _ in range(10)]
    for _ in tasks:
        await ready.acquire()
    await here.publish(JOBS)
    assert all(await asyncio.gather(*tasks))
