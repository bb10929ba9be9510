"""Replicas that the fleet launches: how they are restarted while others answer, drained, adopted and replaced."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from prometheus_client import CollectorRegistry

from core.config.schema import HoneConfig
from core.deployment import Deployment, DeploymentStatus, Restart
from core.errors import Conflict, NotFound
from core.policy import Base, ServingStatus
from serving.engines.fake import FakeEngineServer
from serving.fleet import Fleet
from store.events import DEPLOYMENTS
from store.store import Store
from tests.engine_stand_in import stand_in_for_vllm
from tests.serving_harness import BASE, POLICY, Publisher, write_base

PATIENCE = 120.0


@dataclass
class World:
    """What a fleet of launched engines needs, and what others see of it."""

    config: HoneConfig
    store: Store
    base: Base
    publisher: Publisher
    seen: list[frozenset[str]] = field(default_factory=list)
    """Ids of the ready Deployments, whenever they changed."""

    def changed(self, section: str, **fields: Any) -> HoneConfig:
        """The configuration with some keys of a section changed."""
        part = getattr(self.config, section).model_copy(update=fields)
        return self.config.model_copy(update={section: part})

    async def stored(self) -> list[Deployment]:
        """The Deployments as others see them, by Variant and number."""
        async with self.store.reading() as work:
            return sorted(await work.deployments.list(), key=lambda one: (one.variant, one.replica))

    async def until(self, condition: Callable[[list[Deployment]], bool]) -> list[Deployment]:
        """Wait until the stored Deployments meet a condition."""
        async with asyncio.timeout(PATIENCE):
            while True:
                rows = await self.stored()
                ready = frozenset(one.id for one in rows if one.status is DeploymentStatus.READY)
                if not self.seen or self.seen[-1] != ready:
                    self.seen.append(ready)
                if condition(rows):
                    return rows
                await asyncio.sleep(0.01)

    async def ask_restart(self, deployment_id: str) -> None:
        """Ask for a restart as the admin API does."""
        async with self.store.transaction() as work:
            row = await work.deployments.get(deployment_id, lock=True)
            await work.deployments.put(row.model_copy(update={"restart": Restart(reason="a test")}))
        await self.store.events.publish(DEPLOYMENTS)


@pytest.fixture
async def world(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    fresh_sqlite_url: str,
    make_config: Callable[..., HoneConfig],
    open_store: Any,
) -> World:
    """Two standard engines are wanted, and none runs."""
    stand_in_for_vllm(tmp_path, monkeypatch)
    monkeypatch.setenv("STAND_IN_TOKEN_SECONDS", "0.02")
    overrides = {
        "store.url": fresh_sqlite_url,
        "fleet.variants": ["standard"],
        "fleet.replicas": {"standard": 2},
        "fleet.first_port": 0,
        "fleet.reconcile_seconds": 0.1,
        "fleet.drain_seconds": 20.0,
        "engine.python": sys.executable,
    }
    store = await open_store(fresh_sqlite_url, overrides)
    base = write_base(tmp_path / "base")
    publisher = Publisher(store, base, tmp_path)
    await publisher.start()
    return World(make_config(overrides), store, base, publisher)


@asynccontextmanager
async def running(
    world: World, config: HoneConfig | None = None, *, stop_engines: bool = True
) -> AsyncIterator[Fleet]:
    """A ready fleet."""
    fleet = Fleet(config=config or world.config, store=world.store, base=world.base, registry=CollectorRegistry())
    await fleet.start()
    try:
        await fleet.wait_ready(PATIENCE)
        yield fleet
    finally:
        await fleet.stop(stop_engines=stop_engines)


@asynccontextmanager
async def long_answer(url: str, tokens: int = 100) -> AsyncIterator[Awaitable[str]]:
    """A stream of about two seconds that has begun; its whole text."""
    async with aiohttp.ClientSession() as session:
        body = {"model": BASE, "prompt": "hi", "max_tokens": tokens, "stream": True, "ignore_eos": True}
        async with session.post(url + "/v1/completions", json=body) as response:
            await response.content.readany()
            yield asyncio.create_task(response.text())


def alive(pid: int | None) -> bool:
    """Whether a process runs; one that ended and was not waited for does not."""
    assert pid is not None
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


async def test_restarts_take_turns_and_cut_no_answer(world: World):
    """Both engines are asked to restart: one after the other, drained, its versions back before the next one."""
    async with running(world) as fleet:
        await world.publisher.publish()
        before = await world.until(lambda rows: all(one.holding(POLICY, 1) is not None for one in rows))
        assert [one.replica for one in before] == [0, 1]
        async with long_answer(before[0].url) as one, long_answer(before[1].url) as two:
            for row in before:
                await world.ask_restart(row.id)
            await world.until(lambda rows: any(one.status is DeploymentStatus.DRAINING for one in rows))
            assert "[DONE]" in await one and "[DONE]" in await two
        old = {one.id: one.pid for one in before}

        def restarted(rows: list[Deployment]) -> bool:
            ready = all(one.status is DeploymentStatus.READY and one.restart is None for one in rows)
            return ready and all(one.pid != old[one.id] for one in rows)

        after = await world.until(restarted)
        assert all(one.holding(POLICY, 1) is not None for one in after)
        assert [(one.id, one.url) for one in after] == [(one.id, one.url) for one in before]
        assert all(world.seen[1:]), "at some time no replica was ready"
        with pytest.raises(NotFound):
            fleet.request_restart("dep_none")
        fleet.request_restart(after[0].id, "another drafter")
        await world.until(lambda rows: rows[0].pid != after[0].pid and rows[0].status is DeploymentStatus.READY)


async def test_another_command_rolls_through_the_replicas(world: World):
    """After a change of configuration the engines are adopted, and replaced one by one under their own ids."""
    async with running(world, stop_engines=False):
        before = await world.stored()
    world.seen.clear()
    config = world.changed("engine", max_num_seqs=7)
    fleet = Fleet(config=config, store=world.store, base=world.base, registry=CollectorRegistry())
    await fleet.start()
    try:
        old = {one.pid for one in before}
        after = await world.until(
            lambda rows: all(one.status is DeploymentStatus.READY and one.pid not in old for one in rows)
        )
        assert [one.id for one in after] == [one.id for one in before]
        assert all(world.seen), "at some time no replica was ready"
        assert not any(alive(pid) for pid in old)
        await fleet.wait_ready(PATIENCE)
    finally:
        await fleet.stop()


async def test_a_replica_that_is_not_wanted_any_more_is_drained(world: World):
    """It finishes its answer, then its process ends and its Deployment is forgotten; the other one is not touched."""
    async with running(world, stop_engines=False):
        kept, leaving = await world.stored()
    async with running(world, world.changed("fleet", replicas={}), stop_engines=True):
        async with long_answer(leaving.url) as answer:
            rows = await world.until(lambda rows: any(one.status is DeploymentStatus.DRAINING for one in rows))
            assert [one.id for one in rows] == [kept.id, leaving.id]
            assert "[DONE]" in await answer
        rows = await world.until(lambda rows: len(rows) == 1)
        assert [(one.id, one.pid, one.status) for one in rows] == [(kept.id, kept.pid, DeploymentStatus.READY)]
        assert not alive(leaving.pid)


async def test_an_engine_started_just_before_its_fleet_was_killed_is_found(world: World):
    """A process that nobody had time to record is adopted by its command, not started a second time."""
    async with running(world, stop_engines=False):
        before = await world.stored()
    async with world.store.transaction() as work:
        unrecorded = before[0].model_copy(update={"pid": None, "status": DeploymentStatus.STARTING})
        await work.deployments.put(unrecorded)
    async with running(world):
        after = await world.stored()
        assert [(one.id, one.pid) for one in after] == [(one.id, one.pid) for one in before]


async def test_an_engine_that_dies_while_it_drains_comes_back(world: World):
    """The restart that was asked for is done by the start that follows, and not twice."""
    async with running(world):
        before = await world.stored()
        async with long_answer(before[0].url, tokens=400):
            await world.ask_restart(before[0].id)
            await world.until(lambda rows: rows[0].status is DeploymentStatus.DRAINING)
            assert before[0].pid is not None
            os.killpg(before[0].pid, signal.SIGKILL)
        after = await world.until(
            lambda rows: (
                rows[0].status is DeploymentStatus.READY and rows[0].restart is None and rows[0].pid is not None
            )
        )
        assert after[0].pid != before[0].pid
        await asyncio.sleep(1.0)
        assert (await world.stored())[0].pid == after[0].pid


async def test_an_engine_of_another_machine_serves_on_until_it_is_lost(world: World):
    """A fleet that follows one elsewhere attaches its engines, and starts its own in place of one that goes."""
    config = world.changed("fleet", replicas={})
    async with FakeEngineServer(base_name=BASE) as elsewhere:
        row = Deployment(
            id="dep_elsewhere",
            base=BASE,
            variant="standard",
            engine="vllm",
            url=elsewhere.url,
            status=DeploymentStatus.READY,
            machine="another-machine",
            pid=1,
        )
        async with world.store.transaction() as work:
            await work.deployments.put(row)
        async with running(world, config) as fleet:
            await world.publisher.publish()
            await world.until(lambda rows: rows[0].holding(POLICY, 1) is not None)
            assert [(one.id, one.url) for one in await world.stored()] == [(row.id, elsewhere.url)]
            with pytest.raises(Conflict):
                fleet.request_restart(row.id)
            await elsewhere.stop()
            rows = await world.until(
                lambda rows: rows[0].url != elsewhere.url and rows[0].status is DeploymentStatus.READY
            )
            assert rows[0].holding(POLICY, 1) is not None
            assert rows[0].id == row.id and rows[0].machine != row.machine and alive(rows[0].pid)
            version = await world.publisher.version(1)
            assert version.serving is ServingStatus.LIVE


async def test_an_engine_of_another_machine_outlasts_one_missed_check(world: World):
    """One that does not answer the fleet that follows is unhealthy, not forgotten, and serves when it answers."""
    async with FakeEngineServer(base_name=BASE) as elsewhere:
        row = Deployment(
            id="dep_elsewhere",
            base=BASE,
            variant="standard",
            engine="vllm",
            url=elsewhere.url,
            status=DeploymentStatus.READY,
            machine="another-machine",
            pid=1,
        )
        async with world.store.transaction() as work:
            await work.deployments.put(row)
        elsewhere.healthy = False
        config = world.changed("fleet", replicas={})
        fleet = Fleet(config=config, store=world.store, base=world.base, registry=CollectorRegistry())
        await fleet.start()
        try:
            elsewhere.healthy = True
            (taken,) = fleet.deployments
            assert (taken.id, taken.url, taken.status) == (row.id, row.url, DeploymentStatus.UNHEALTHY)
            (ready,) = await world.until(lambda rows: rows[0].status is DeploymentStatus.READY)
            assert (ready.id, ready.url, ready.machine) == (row.id, row.url, row.machine)
        finally:
            await fleet.stop()
