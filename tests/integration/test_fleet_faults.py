"""Faults of engines, folders and loads on three replicas: the old version goes on answering, no hand is needed."""

import asyncio
import errno
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from core.config.schema import HoneConfig
from core.deployment import Deployment, DeploymentStatus
from core.errors import VersionNotServed
from core.policy import Base, PolicyVersion, ServingStatus
from core.variant import parse_model_name
from serving import hotswap
from serving.engines.fake import FakeEngineServer
from serving.fleet import Fleet
from serving.pool import InFlight, RoutingTable
from store.events import VERSIONS
from store.store import Store
from tests.fleet_harness import CUT, PATIENCE, asking, stored_deployments, until
from tests.serving_harness import BASE, POLICY, Publisher, write_base

READY, UNHEALTHY = DeploymentStatus.READY, DeploymentStatus.UNHEALTHY


@dataclass
class World:
    """A running fleet of three standard replicas with ``coder@1`` live."""

    config: HoneConfig
    store: Store
    base: Base
    publisher: Publisher
    engines: tuple[FakeEngineServer, ...]
    fleet: Fleet
    folder: Path
    """Where versions are published."""

    async def until_serving(self, number: int, status: ServingStatus) -> PolicyVersion:
        """Wait until a version has a serving status."""

        async def reached() -> bool:
            return (await self.publisher.version(number)).serving is status

        await until(reached)
        return await self.publisher.version(number)

    async def until_row(self, engine: FakeEngineServer, condition: Callable[[Deployment], bool]) -> Deployment:
        """Wait until an engine's stored Deployment meets a condition."""

        async def reached() -> bool:
            return condition(await self.row(engine))

        await until(reached)
        return await self.row(engine)

    async def row(self, engine: FakeEngineServer) -> Deployment:
        """An engine's Deployment as others see it."""
        return next(one for one in await stored_deployments(self.store) if one.url == engine.url)

    async def routes(self, model: str) -> set[str]:
        """URLs that a gateway would send requests for ``model`` to, over many requests."""
        async with self.store.reading() as work:
            table = RoutingTable.build(
                await work.bases.list(),
                await work.policies.list(),
                await work.versions.list_serving(frozenset(ServingStatus)),
                await work.deployments.list(),
                InFlight(),
            )
        found = set()
        for _ in range(12):
            route = table.resolve(parse_model_name(model))
            assert route.engine_model in self.engine(route.deployment.url).adapters
            with table.in_flight.track(route.deployment.id):
                found.add(route.deployment.url)
        return found

    def engine(self, url: str) -> FakeEngineServer:
        """The engine at an address."""
        return next(engine for engine in self.engines if engine.url == url)


@pytest.fixture
async def world(
    tmp_path: Path, fresh_sqlite_url: str, make_config: Callable[..., HoneConfig], open_store: Any
) -> AsyncIterator[World]:
    """Three replicas that hold the first version."""
    engines = tuple(FakeEngineServer(base_name=BASE) for _ in range(3))
    for engine in engines:
        await engine.start()
    overrides = {
        "store.url": fresh_sqlite_url,
        "fleet.variants": ["standard"],
        "fleet.attach": {"standard": ",".join(engine.url for engine in engines)},
        "fleet.reconcile_seconds": 0.1,
    }
    config = make_config(overrides)
    store = await open_store(fresh_sqlite_url, overrides)
    base = write_base(tmp_path / "base")
    publisher = Publisher(store, base, tmp_path)
    await publisher.start()
    fleet = Fleet(config=config, store=store, base=base, registry=CollectorRegistry())
    await fleet.start()
    try:
        await fleet.wait_ready(PATIENCE)
        made = World(config, store, base, publisher, engines, fleet, tmp_path)
        await publisher.publish()
        await made.until_serving(1, ServingStatus.LIVE)
        yield made
    finally:
        await fleet.stop()
        for engine in engines:
            await engine.stop()


async def test_rows_say_what_engines_say(world: World):
    """Version, load, the names that an engine lists, and its swaps stand in its Deployment, replica by replica."""
    await until(lambda: all(one.load is not None for one in world.fleet.deployments))
    for number, engine in enumerate(world.engines):
        row = await world.until_row(engine, lambda one: one.load is not None and len(one.answers_to) > 1)
        assert (row.replica, row.engine_version) == (number, "0.32.0")
        assert set(row.answers_to) == {BASE, *engine.adapters}
        assert [(one.kind, one.policy, one.version, one.outcome) for one in row.swaps] == [
            ("lora", POLICY, 1, "live")
        ]


async def test_one_of_three_that_fails_its_probe_refuses_the_version(world: World):
    """A new version that one replica does not reproduce is refused everywhere; the record says on which and why."""
    engine = world.engines[1]
    (first,) = engine.adapters
    engine.wrong_content = engine.identity(first)
    async with asking(world.store, POLICY, 1) as failures:
        await world.publisher.publish()
        refused = await world.until_serving(2, ServingStatus.REFUSED)
        await until(lambda: all(set(one.adapters) == {first} for one in world.engines))
    assert failures == []
    assert engine.url in (refused.serving_reason or "")
    row = await world.until_row(engine, lambda one: one.swaps[-1].version == 2)
    assert row.swaps[-1].outcome == "refused" and "probe" in (row.swaps[-1].reason or "")
    engine.wrong_content = None
    await world.publisher.publish()
    await world.until_serving(3, ServingStatus.LIVE)


async def test_a_replica_that_lost_a_version_is_never_picked_for_it(world: World):
    """One that comes back and answers wrongly under the name serves the rest; that version comes from the others."""
    engine = world.engines[2]
    await world.publisher.publish()
    await world.until_serving(2, ServingStatus.LIVE)
    wrong = engine.identity(BASE)
    await engine.stop()
    await world.until_row(engine, lambda one: one.status is UNHEALTHY)
    assert engine.url not in await world.routes(f"{POLICY}@2")
    engine.wrong_content = wrong
    await engine.start()
    row = await world.until_row(engine, lambda one: one.status is READY)
    assert row.loaded == () and {one.outcome for one in row.swaps[-2:]} == {"refused"}
    assert await world.routes(f"{POLICY}@2") == {one.url for one in world.engines if one is not engine}
    engine.wrong_content = None
    await engine.stop()
    await world.until_row(engine, lambda one: one.status is UNHEALTHY)
    await engine.start()
    await world.until_row(engine, lambda one: one.status is READY and one.holding(POLICY, 2) is not None)
    assert await world.routes(f"{POLICY}@2") == {one.url for one in world.engines}


async def test_an_engine_that_dies_in_the_middle_of_a_load(world: World):
    """The version goes live on the others, requests on the old one are answered, and the dead one catches up."""
    engine = world.engines[0]
    engine.load_delay_seconds = 30.0
    async with asking(world.store, POLICY, 1) as failures:
        loads = len(engine.loads)
        await world.publisher.publish()
        await until(lambda: len(engine.loads) > loads)
        await engine.stop()
        await world.until_serving(2, ServingStatus.LIVE)
        assert engine.url not in await world.routes(f"{POLICY}@2")
        engine.load_delay_seconds = 0.0
        await engine.start()
        await world.until_row(engine, lambda one: one.status is READY and one.holding(POLICY, 2) is not None)
    assert [text for text in failures if not text.startswith(CUT)] == []


async def test_a_sick_engine_leaves_routing_and_comes_back(world: World):
    """An engine that says it is not healthy gets no requests, keeps what it holds, and needs no restart."""
    engine = world.engines[1]
    engine.healthy = False
    await world.until_row(engine, lambda one: one.status is UNHEALTHY)
    assert engine.url not in await world.routes(f"{POLICY}@1")
    loads = list(engine.loads)
    engine.healthy = True
    await world.until_row(engine, lambda one: one.status is READY)
    assert engine.url in await world.routes(f"{POLICY}@1")
    assert engine.loads == loads


@pytest.mark.parametrize("damage", ["missing", "cut", "other_base"])
async def test_a_damaged_folder_is_refused_and_the_next_one_served(world: World, damage: str):
    """Half an adapter, none, or one of another Base reaches no engine; the version before and the next one serve."""
    async with world.store.transaction() as work:
        # Nothing is loaded of a Policy whose Base is another one: the folder can be damaged before anybody looks.
        await work.policies.update((await work.policies.get(POLICY)).model_copy(update={"base": "other"}))
    trained_on = world.base.model_copy(update={"fingerprint": "0" * 64}) if damage == "other_base" else world.base
    await Publisher(world.store, trained_on, world.folder).publish()
    weights = world.publisher.path(2) / "adapter_model.safetensors"
    if damage == "missing":
        weights.unlink()
    elif damage == "cut":
        weights.write_bytes(weights.read_bytes()[:100])
    async with world.store.transaction() as work:
        await work.policies.update((await work.policies.get(POLICY)).model_copy(update={"base": BASE}))
    await world.store.events.publish(VERSIONS)
    await world.until_serving(2, ServingStatus.REFUSED)
    await world.until_serving(1, ServingStatus.LIVE)
    await world.publisher.publish()
    await world.until_serving(3, ServingStatus.LIVE)
    assert not any(".v2-" in name for engine in world.engines for name in engine.loads)


async def test_a_full_disk_delays_a_version_and_refuses_nothing(world: World, monkeypatch: pytest.MonkeyPatch):
    """While the folder cannot be read for reasons of the disk the version waits, then goes live by itself."""
    read = hotswap.folder_checksum
    asked = 0

    def full(path: Path) -> str:
        nonlocal asked
        asked += 1
        try:
            raise OSError(errno.ENOSPC, "No space left on device")
        except OSError as error:
            raise hotswap.CorruptArtefact(f"{path} cannot be read: {error}") from error

    monkeypatch.setattr(hotswap, "folder_checksum", full)
    async with asking(world.store, POLICY, 1) as failures:
        await world.publisher.publish()
        await until(lambda: asked >= 5)
        assert (await world.publisher.version(2)).serving is ServingStatus.WANTED
        with pytest.raises(VersionNotServed, match="being loaded"):
            await world.routes(f"{POLICY}@2")
        monkeypatch.setattr(hotswap, "folder_checksum", read)
        await world.until_serving(2, ServingStatus.LIVE)
    assert failures == []
    row = await world.until_row(world.engines[0], lambda one: one.swaps[-1].version == 2)
    assert [one.outcome for one in row.swaps] == ["live", "failed", "live"]


async def test_all_engines_away_at_once(world: World):
    """When every replica dies nothing is routed; each comes back with all versions, without a hand."""
    await world.publisher.publish()
    await world.until_serving(2, ServingStatus.LIVE)
    await asyncio.gather(*(engine.stop() for engine in world.engines))
    for engine in world.engines:
        await world.until_row(engine, lambda one: one.status is UNHEALTHY)
    await asyncio.gather(*(engine.start() for engine in world.engines))
    for engine in world.engines:
        await world.until_row(
            engine, lambda one: one.status is READY and all(one.holding(POLICY, n) is not None for n in (1, 2))
        )


async def test_a_replica_that_is_closed_while_others_load_stays_closed(world: World):
    """A pass that waits in a load does not open a replica that was drained for a restart meanwhile."""
    slow = world.engines[0]
    slow.load_delay_seconds = 1.0
    loads = len(slow.loads)
    await world.publisher.publish()
    await until(lambda: len(slow.loads) > loads)
    (replica,) = (one for one in world.fleet._replicas if one.engine.url == world.engines[1].url)
    replica.closed = True
    replica.move_to(DeploymentStatus.DRAINING, "a test")
    await world.until_serving(2, ServingStatus.LIVE)
    await asyncio.sleep(0.5)
    assert replica.deployment.status is DeploymentStatus.DRAINING
    replica.closed = False
    await world.until_row(world.engines[1], lambda one: one.status is READY)


async def test_full_weights_that_were_left_behind_are_not_served_as_the_base(world: World):
    """Without ``fleet.full_weights_policy`` an engine that still holds a Policy's weights stays out, and says why."""
    left = world.engines[0]
    await world.fleet.stop()
    left.weights.label = f"{POLICY}@1"
    row = await world.row(left)
    async with world.store.transaction() as work:
        await work.deployments.put(row.model_copy(update={"policy": POLICY, "loaded": ()}))
    fleet = Fleet(config=world.config, store=world.store, base=world.base, registry=CollectorRegistry())
    await fleet.start()
    try:
        out = await world.row(left)
        assert out.status is UNHEALTHY and f"{POLICY}@1" in (out.status_reason or "")
        await world.publisher.publish()
        await world.until_serving(2, ServingStatus.LIVE)
        assert await world.routes(f"{POLICY}@2") == {one.url for one in world.engines[1:]}
        left.weights.label = "default"
        await world.until_row(left, lambda one: one.status is READY and one.holding(POLICY, 2) is not None)
    finally:
        await fleet.stop()


async def test_a_promoted_version_that_no_engine_takes_again_is_not_refused(
    world: World, monkeypatch: pytest.MonkeyPatch
):
    """It was live: engines serve on without it, ask for it ever again, and have it back when the cause passes."""
    monkeypatch.setattr("serving.reconciler.retry_delay_seconds", lambda *_: 0.2)
    async with world.store.transaction() as work:
        await work.policies.update((await work.policies.get(POLICY)).model_copy(update={"promoted_version": 1}))
    await world.store.events.publish(VERSIONS)
    await asyncio.gather(*(engine.stop() for engine in world.engines))
    for engine in world.engines:
        await world.until_row(engine, lambda one: one.status is UNHEALTHY)
        engine.refuse_loads = "no room"
    loads = len(world.engines[0].loads)
    await asyncio.gather(*(engine.start() for engine in world.engines))
    await until(lambda: len(world.engines[0].loads) >= loads + 3)
    assert (await world.publisher.version(1)).serving is ServingStatus.LIVE
    for engine in world.engines:
        row = await world.until_row(engine, lambda one: one.status is READY)
        assert row.loaded == () and [one.outcome for one in row.swaps] == ["live", "refused"]
        engine.refuse_loads = None
    for engine in world.engines:
        await world.until_row(engine, lambda one: one.holding(POLICY, 1) is not None)
    assert await world.routes(POLICY) == {one.url for one in world.engines}
