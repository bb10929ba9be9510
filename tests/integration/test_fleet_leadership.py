"""Several fleet processes of one Base: one leads, the others wait, and a lost leader is followed without a gap."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from core.config.schema import HoneConfig
from core.deployment import Deployment, DeploymentStatus
from core.errors import LeaseLost
from core.fleet_plan import FleetPlan
from core.lease import Lease
from core.noun import now
from core.policy import Base, ServingStatus
from core.variant import Variant
from serving.engines.fake import FakeEngineServer
from serving.led_fleet import LedFleet
from store.events import FLEETS
from store.leadership import fleet_lease
from store.migrate import upgrade
from store.store import Store
from tests.fleet_harness import CUT, asking, stored_deployments, until
from tests.services import PostgresServer
from tests.serving_harness import BASE, POLICY, Publisher, write_base

LEASE_SECONDS = 2.0


@dataclass
class World:
    """A store, two engines, and the fleets that a test starts."""

    config: HoneConfig
    store: Store
    base: Base
    publisher: Publisher
    engines: tuple[FakeEngineServer, FakeEngineServer]
    folder: Path
    processes: list[asyncio.subprocess.Process] = field(default_factory=list)

    async def start_process(self, name: str) -> asyncio.subprocess.Process:
        """A fleet in a process of its own, its log in ``NAME.log``."""
        fleet = self.config.fleet
        environment = {key: value for key, value in os.environ.items() if not key.startswith("HONE_")} | {
            "HONE_CONFIG": "/dev/null",
            "HONE_DATA_DIR": str(self.folder / "data"),
            "HONE_STORE__URL": self.config.store.url,
            "HONE_BASE__NAME": BASE,
            "HONE_FLEET__ATTACH": f'{{standard = "{fleet.attach["standard"]}"}}',
            "HONE_FLEET__VARIANTS": '["standard"]',
            "HONE_FLEET__LEASE_SECONDS": str(fleet.lease_seconds),
            "HONE_FLEET__RECONCILE_SECONDS": str(fleet.reconcile_seconds),
            "HONE_FLEET__METRICS_PORT": "0",
        }
        with self.log(name).open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "hone.processes.fleet"), env=environment, stdout=log, stderr=log
            )
        self.processes.append(process)
        return process

    def log(self, name: str) -> Path:
        """The log file of a process."""
        return self.folder / f"{name}.log"

    def said(self, name: str, what: str) -> bool:
        """Whether a process logged ``what``."""
        return what in self.log(name).read_text()

    async def lease(self) -> Lease:
        """The lease as it stands."""
        async with self.store.reading() as work:
            return await work.leases.get(fleet_lease(BASE))

    async def leads(self, process: asyncio.subprocess.Process) -> bool:
        """Whether a process leads."""
        lease = await self.lease()
        return f":{process.pid}:" in lease.owner and lease.until > now()

    async def stored(self) -> list[Deployment]:
        """The Deployments as others see them."""
        return await stored_deployments(self.store)

    async def serving(self, number: int, replicas: int = 2) -> bool:
        """Whether a version is live on every replica."""
        version = await self.publisher.version(number)
        ready = [one for one in await self.stored() if one.status is DeploymentStatus.READY]
        held = [one for one in ready if one.holding(POLICY, number) is not None]
        return version.serving is ServingStatus.LIVE and len(held) == replicas

    async def publish_live(self, number: int) -> None:
        """Publish a version, and wait until it is served everywhere."""
        await self.publisher.publish()
        await until(lambda: self.serving(number))


@pytest.fixture
async def world(
    request: pytest.FixtureRequest, tmp_path: Path, make_config: Callable[..., HoneConfig], open_store: Any
) -> AsyncIterator[World]:
    """Two engines of the standard Variant that somebody else runs, and no fleet yet; on SQLite unless told."""
    database_url: str = request.getfixturevalue(f"fresh_{getattr(request, 'param', 'sqlite')}_url")
    async with FakeEngineServer(base_name=BASE) as one, FakeEngineServer(base_name=BASE) as two:
        overrides = {
            "store.url": database_url,
            "base.name": BASE,
            "fleet.variants": ["standard"],
            "fleet.attach": {"standard": f"{one.url}, {two.url}"},
            "fleet.reconcile_seconds": 0.1,
            "fleet.lease_seconds": LEASE_SECONDS,
        }
        store = await open_store(database_url, overrides)
        base = write_base(tmp_path / "base")
        publisher = Publisher(store, base, tmp_path)
        await publisher.start()
        made = World(make_config(overrides), store, base, publisher, (one, two), tmp_path)
        try:
            yield made
        finally:
            for process in made.processes:
                if process.returncode is None:
                    process.kill()
                    await process.wait()


async def test_a_leader_killed_in_the_middle_of_a_load_is_followed(world: World):
    """The waiting fleet finishes what was begun; the version before is answered by without a gap."""
    first = await world.start_process("first")
    await until(lambda: world.leads(first))
    await world.publish_live(1)
    second = await world.start_process("second")
    await until(lambda: world.said("second", "waiting_to_lead"))
    async with asking(world.store, POLICY, 1) as failures:
        for engine in world.engines:
            engine.load_delay_seconds = 1.0
        loads = len(world.engines[0].loads)
        await world.publisher.publish()
        await until(lambda: len(world.engines[0].loads) > loads)
        first.kill()
        await until(lambda: world.leads(second))
        await until(lambda: world.serving(2))
    assert failures == []
    assert await world.serving(1)
    ids = [one.id for one in await world.stored()]
    assert len(ids) == 2 and (await world.lease()).token == 2


@pytest.mark.parametrize("world", ["postgres"], indirect=True)
async def test_a_leader_that_was_frozen_writes_nothing_when_it_wakes(world: World):
    """It finds that another one leads, and waits; what the other one did stands."""
    first = await world.start_process("first")
    await until(lambda: world.leads(first))
    await world.publish_live(1)
    first.send_signal(signal.SIGSTOP)
    try:
        second = await world.start_process("second")
        await until(lambda: world.leads(second))
        await world.publish_live(2)
    finally:
        first.send_signal(signal.SIGCONT)
    await until(lambda: world.said("first", "lease_lost"))
    await until(lambda: world.said("first", "waiting_to_lead"))
    assert await world.leads(second) and await world.serving(2)
    loads = [list(engine.loads) for engine in world.engines]
    second.terminate()
    await second.wait()
    assert await world.serving(2)
    await until(lambda: world.leads(first))
    assert [list(engine.loads) for engine in world.engines] == loads
    await world.publish_live(3)


@asynccontextmanager
async def led(world: World, store: Store | None = None) -> AsyncIterator[tuple[LedFleet, CollectorRegistry]]:
    """A fleet in this process, leading or waiting."""
    registry = CollectorRegistry()
    fleet = LedFleet(config=world.config, store=store or world.store, base=world.base, registry=registry)
    await fleet.start()
    try:
        yield fleet, registry
    finally:
        await fleet.stop()


def leads(registry: CollectorRegistry) -> float | None:
    """What a fleet's metrics say."""
    return registry.get_sample_value("hone_fleet_leads", {"base": BASE})


async def test_the_second_waits_and_says_so(world: World, open_store: Any):
    """Only the leader touches engines; an orderly end hands the lead over at once, with the Deployments' ids."""
    other = await open_store(world.config.store.url)
    async with led(world) as (first, registry):
        await until(lambda: first.leads)
        await world.publish_live(1)
        async with led(world, other) as (second, waiting):
            await asyncio.sleep(2 * LEASE_SECONDS)
            assert (leads(registry), leads(waiting), second.fleet.deployments) == (1.0, 0.0, ())
            await first.stop()
            await until(lambda: second.leads)
            await world.publish_live(2)
            assert leads(registry) == 0.0 and leads(waiting) == 1.0


@pytest.mark.parametrize("world", ["sqlite", "postgres"], indirect=True)
async def test_another_plan_changes_the_replicas_and_not_the_answers(world: World):
    """Replicas that a plan leaves out go, those that it has stay as they are, and without it all come back."""
    async with led(world) as (fleet, _):
        await until(lambda: fleet.leads)
        await world.publish_live(1)
        before = {one.url: one for one in await world.stored()}
        kept = world.engines[0].url
        async with asking(world.store, POLICY, 1) as failures:
            plan = FleetPlan(base=BASE, attach={Variant.STANDARD: (kept,)})
            async with world.store.transaction() as work:
                await work.fleet_plans.put(plan)
            await world.store.events.publish(FLEETS)
            await until(lambda: [one.url for one in fleet.fleet.deployments] == [kept])
            await until(lambda: _urls_are(world, {kept}))
            assert (await world.stored())[0].id == before[kept].id
            async with world.store.transaction() as work:
                await work.fleet_plans.remove(BASE)
            await world.store.events.publish(FLEETS)
            await until(lambda: _urls_are(world, set(before)))
            await until(lambda: world.serving(1))
        assert not [failure for failure in failures if not failure.startswith(CUT)]


async def _urls_are(world: World, urls: set[str]) -> bool:
    return {one.url for one in await world.stored()} == urls


async def test_a_fleet_that_was_overtaken_writes_nothing_more(world: World):
    """A stale leader's commit is refused as a whole; it leads again when the lease is free, with the same engines."""
    async with led(world) as (fleet, _):
        await until(lambda: fleet.leads)
        await world.publish_live(1)
        before = await world.stored()
        async with world.store.transaction() as work:
            current = await work.leases.get(fleet_lease(BASE))
            await work.leases.release(current)
            stolen = await work.leases.acquire(fleet_lease(BASE), "somebody else", now=now(), seconds=3600.0)
        assert stolen is not None
        with pytest.raises(LeaseLost):
            await fleet.fleet._records.commit(fleet.fleet._replicas)
        await until(lambda: not fleet.leads)
        stood = await world.stored()
        await asyncio.sleep(1.0)
        assert await world.stored() == stood
        assert all(len(engine.adapters) == 1 for engine in world.engines)
        async with world.store.transaction() as work:
            await work.leases.release(stolen)
        await until(lambda: fleet.leads)
        await world.publish_live(2)
        assert [one.id for one in await world.stored()] == [one.id for one in before]


async def test_a_database_that_was_away_needs_no_hand(world: World, tmp_path: Path, open_store: Any):
    """Engines serve on without a database, and the fleet goes on by itself once it is back."""
    server = PostgresServer()
    try:
        await asyncio.to_thread(server.start)
        await asyncio.to_thread(upgrade, server.url)
        store = await open_store(server.url)
        (tmp_path / "adapters").mkdir()
        publisher = Publisher(store, world.base, tmp_path / "adapters")
        await publisher.start()
        there = World(world.config, store, world.base, publisher, world.engines, tmp_path)
        async with led(there) as (fleet, _):
            await until(lambda: fleet.leads)
            await there.publish_live(1)
            names = [set(engine.adapters) for engine in world.engines]
            await asyncio.to_thread(server.stop)
            await until(lambda: not fleet.leads)
            assert [set(engine.adapters) for engine in world.engines] == names
            await asyncio.to_thread(server.resume)
            await until(lambda: fleet.leads)
            await there.publish_live(2)
            assert await there.serving(1)
        await store.close()
    finally:
        await asyncio.to_thread(server.remove)
