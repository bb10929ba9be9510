"""Local events: what the files are for, and what happens when they cannot be written."""

import shutil
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from core.errors import ConfigurationError
from store import local_events
from store.events import JOBS, TOPICS
from store.local_events import LocalEvents
from store.redis_events import RedisEvents


async def test_a_failing_folder_is_counted_and_own_waiters_still_wake(tmp_path: Path) -> None:
    """When the files are gone, publishing raises nothing, counts the failure and wakes this process."""
    registry = CollectorRegistry()
    events = LocalEvents(tmp_path / "events", registry=registry)
    shutil.rmtree(tmp_path / "events")
    async with events.subscribe([JOBS]) as subscription:
        await events.publish(JOBS)
        assert await subscription.wait(30)
    await events.close()
    assert registry.get_sample_value("hone_events_publish_failures_total") == 1.0
    assert registry.get_sample_value("hone_events_published_total", {"topic": JOBS}) == 1.0


async def test_files_stay_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A topic's file starts again at its limit, and starting again wakes as well."""
    monkeypatch.setattr(local_events, "_LARGEST_FILE", 3)
    here = LocalEvents(tmp_path, registry=CollectorRegistry())
    there = LocalEvents(tmp_path, registry=CollectorRegistry())
    async with there.subscribe([JOBS]) as subscription:
        for _ in range(10):
            await here.publish(JOBS)
            assert await subscription.wait(30)
            assert (tmp_path / JOBS).stat().st_size <= 3
    await here.close()
    await there.close()


async def test_an_unknown_topic_is_a_mistake(tmp_path: Path) -> None:
    """A topic that nobody could watch is refused, so that a typing error cannot silence a wake-up."""
    events = LocalEvents(tmp_path, registry=CollectorRegistry())
    assert "job" not in TOPICS
    with pytest.raises(ValueError, match="'job' is not a topic"):
        await events.publish("job")
    with pytest.raises(ValueError, match="'job' is not a topic"):
        async with events.subscribe(["job"]):
            pass


def test_a_wrong_redis_url_is_a_configuration_error() -> None:
    """What is no Redis URL is refused with the name of its key."""
    with pytest.raises(ConfigurationError, match=r"store\.redis_url"):
        RedisEvents("http://127.0.0.1", registry=CollectorRegistry())
