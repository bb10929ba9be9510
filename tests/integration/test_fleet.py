"""The fleet on two attached fake engines and a real store."""

import asyncio
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from prometheus_client import CollectorRegistry, generate_latest

from core.config.schema import HoneConfig
from core.deployment import Deployment, DeploymentStatus
from core.episode import Episode, EpisodeStatus
from core.errors import EngineError
from core.ids import EPISODE, new_id
from core.policy import Base, PolicyVersion, ServingStatus
from core.release import ReleaseStatus
from serving.engines.fake import FakeEngineServer
from serving.fleet import Fleet
from store.events import POLICIES, VERSIONS
from store.store import Store
from tests.serving_harness import BASE, POLICY, Publisher, probe_of, write_base

PATIENCE = 60.0
"""Longest wait in seconds; generous, because machines that run tests are busy."""


@dataclass
class World:
    """A running fleet and what is around it."""

    config: HoneConfig
    store: Store
    base: Base
    engines: dict[str, FakeEngineServer]
    publisher: Publisher
    fleet: Fleet
    registry: CollectorRegistry

    async def until(self, condition: Callable[[], Any]) -> None:
        """Wait until an async or plain condition holds."""
        async with asyncio.timeout(PATIENCE):
            while True:
                value = condition()
                if asyncio.iscoroutine(value):
                    value = await value
                if value:
                    return
                await asyncio.sleep(0.02)

    async def until_serving(self, number: int, status: ServingStatus) -> PolicyVersion:
        """Wait until a version has a serving status."""

        async def reached() -> bool:
            return (await self.publisher.version(number)).serving is status

        await self.until(reached)
        return await self.publisher.version(number)

    async def stored(self) -> list[Deployment]:
        """The Deployments as others see them."""
        async with self.store.reading() as unit:
            return await unit.deployments.list()

    async def release(self, number: int) -> Any:
        """The Release of a version."""
        async with self.store.reading() as unit:
            return await unit.releases.get(POLICY, number)

    async def promote(self, number: int, previous: int | None = None) -> None:
        """Promote a version as a release controller does."""
        async with self.store.transaction() as unit:
            policy = await unit.policies.get(POLICY)
            change = {"promoted_version": number, "previous_version": previous}
            await unit.policies.update(policy.model_copy(update=change))
        await self.store.events.publish(POLICIES)

    async def names(self, number: int) -> set[str]:
        """Engine names under which the stored Deployments list a version as live."""
        return {
            one.engine_model
            for deployment in await self.stored()
            for one in deployment.loaded
            if one.version == number and one.state == "live"
        }

    def metric(self, name: str) -> list[str]:
        """Lines of one metric."""
        return [line for line in generate_latest(self.registry).decode().splitlines() if line.startswith(name)]


@pytest.fixture
async def world(
    tmp_path: Path, fresh_sqlite_url: str, make_config: Callable[..., HoneConfig], open_store: Any
) -> AsyncIterator[World]:
    """A fleet that is ready, with a standard and a fast replica."""
    async with FakeEngineServer(base_name=BASE) as one, FakeEngineServer(base_name=BASE) as two:
        overrides = {
            "store.url": fresh_sqlite_url,
            "fleet.attach": {"standard": one.url, "fast": two.url},
            "fleet.reconcile_seconds": 0.1,
            "fleet.drain_seconds": 0.3,
            "engine.max_loaded_versions": 3,
        }
        config = make_config(overrides)
        store = await open_store(fresh_sqlite_url, overrides)
        base = write_base(tmp_path / "base")
        publisher = Publisher(store, base, tmp_path)
        await publisher.start()
        engines = {"standard": one, "fast": two}
        async with running(config, store, base) as (fleet, registry):
            yield World(config, store, base, engines, publisher, fleet, registry)


@asynccontextmanager
async def running(config: HoneConfig, store: Store, base: Base) -> AsyncIterator[tuple[Fleet, CollectorRegistry]]:
    """A started fleet, stopped at the end."""
    registry = CollectorRegistry()
    fleet = Fleet(config=config, store=store, base=base, registry=registry)
    await fleet.start()
    try:
        await fleet.wait_ready(PATIENCE)
        yield fleet, registry
    finally:
        await fleet.stop()


async def test_attached_engines_become_ready(world: World):
    """Both Variants are ready in the store, under the attached URLs."""
    stored = await world.stored()
    assert {one.variant.value: one.url for one in stored} == {
        name: engine.url for name, engine in world.engines.items()
    }
    assert all(one.status is DeploymentStatus.READY for one in stored)


async def test_a_new_version_becomes_live_everywhere(world: World):
    """A published version is loaded and probed on all replicas, and live only then."""
    await world.publisher.publish()
    version = await world.until_serving(1, ServingStatus.LIVE)
    assert version.serving_reason is None
    for deployment in await world.stored():
        held = deployment.holding(POLICY, 1)
        assert held is not None and held.probe.passed and not held.probe.indistinguishable
        assert held.swap_seconds > 0
        assert held.engine_model in world.engines[deployment.variant].adapters
    assert world.metric('hone_swap_seconds_count{variant="fast"}') == ['hone_swap_seconds_count{variant="fast"} 1.0']


async def test_swaps_under_load_lose_no_request(world: World):
    """While versions come and go, no streaming request on whatever is live fails."""
    for engine in world.engines.values():
        engine.token_delay_seconds = 0.002
    await world.publisher.publish()
    await world.until_serving(1, ServingStatus.LIVE)
    failures: list[str] = []
    served: set[str] = set()
    stop = asyncio.Event()

    async def client(session: aiohttp.ClientSession) -> None:
        while not stop.is_set():
            deployment = (await world.stored())[0]
            model = max((one for one in deployment.loaded if one.state == "live"), key=lambda one: one.version)
            body = {"model": model.engine_model, "prompt": "hi", "max_tokens": 20, "stream": True}
            async with session.post(deployment.url + "/v1/completions", json=body) as response:
                text = await response.text()
                if response.status != 200 or "[DONE]" not in text:
                    failures.append(text)
            served.add(model.engine_model)

    async with aiohttp.ClientSession() as session, asyncio.TaskGroup() as group:
        for _ in range(8):
            group.create_task(client(session))
        for number in range(2, 6):
            await world.publisher.publish()
            await world.until_serving(number, ServingStatus.LIVE)
            await asyncio.sleep(0.1)
        stop.set()
    assert failures == []
    assert len(served) >= 4


async def test_a_wrong_adapter_under_the_right_name_is_refused(world: World):
    """The probe finds other weights: the version is refused everywhere, the live one is not touched."""
    await world.publisher.publish()
    await world.until_serving(1, ServingStatus.LIVE)
    before = await world.names(1)
    world.engines["fast"].wrong_content = world.engines["fast"].identity(next(iter(before)))
    await world.publisher.publish()
    refused = await world.until_serving(2, ServingStatus.REFUSED)
    assert "failed its probe" in (refused.serving_reason or "")
    assert await world.names(1) == before and await world.names(2) == set()
    assert (await world.publisher.version(1)).serving is ServingStatus.LIVE
    await world.until(lambda: all(set(engine.adapters) == before for engine in world.engines.values()))
    release = await world.release(2)
    assert release.status is ReleaseStatus.REJECTED and "refused" in release.evidence["serving"]
    assert world.metric("hone_swap_failures_total") == ['hone_swap_failures_total{code="probe_failed"} 1.0']


async def test_an_engines_refusal_is_final_and_explained(world: World):
    """What an engine refuses is refused everywhere, with its own words, and not tried again."""
    world.engines["standard"].refuse_loads = "LoRA rank 64 is greater than max_lora_rank 16."
    await world.publisher.publish()
    refused = await world.until_serving(1, ServingStatus.REFUSED)
    assert "rank 64" in (refused.serving_reason or "")
    world.engines["standard"].refuse_loads = None
    loads = len(world.engines["standard"].loads)
    await world.publisher.publish()
    await world.until_serving(2, ServingStatus.LIVE)
    assert len(world.engines["standard"].loads) == loads + 1
    await world.until(lambda: all(len(engine.adapters) == 1 for engine in world.engines.values()))


async def test_a_corrupt_folder_never_reaches_an_engine(world: World):
    """A folder that changed after publication is refused by its checksum."""
    async with world.store.transaction() as unit:
        await unit.policies.update((await unit.policies.get(POLICY)).model_copy(update={"base": "other"}))
    await world.publisher.publish()
    with (world.publisher.path(1) / "adapter_model.safetensors").open("ab") as stream:
        stream.write(b"x")
    async with world.store.transaction() as unit:
        await unit.policies.update((await unit.policies.get(POLICY)).model_copy(update={"base": BASE}))
    await world.store.events.publish(VERSIONS)
    refused = await world.until_serving(1, ServingStatus.REFUSED)
    assert "checksum" in (refused.serving_reason or "")
    assert all(engine.loads == [] for engine in world.engines.values())


async def test_a_dead_engine_comes_back_with_its_versions(world: World):
    """A lost engine is unhealthy, the other one serves on, and it is ready only with all versions loaded."""
    await world.publisher.publish()
    await world.until_serving(1, ServingStatus.LIVE)
    fast = world.engines["fast"]
    await fast.stop()

    async def status(wanted: DeploymentStatus) -> bool:
        return any(one.url == fast.url and one.status is wanted for one in await world.stored())

    await world.until(lambda: status(DeploymentStatus.UNHEALTHY))
    await world.publisher.publish()
    await world.until_serving(2, ServingStatus.LIVE)
    await fast.start()
    await world.until(lambda: status(DeploymentStatus.READY))
    deployment = next(one for one in await world.stored() if one.url == fast.url)
    assert {one.version for one in deployment.loaded} == {1, 2}
    assert set(fast.adapters) == {one.engine_model for one in deployment.loaded}


async def test_an_engine_that_lost_its_adapters_gets_them_back(world: World):
    """An engine that was restarted between two health checks is noticed by what it lists."""
    await world.publisher.publish()
    await world.until_serving(1, ServingStatus.LIVE)
    standard = world.engines["standard"]
    standard.adapters.clear()
    await world.until(lambda: len(standard.adapters) == 1)


async def test_superseded_versions_drain_and_unload(world: World):
    """A version that is not wanted any more is closed to new requests, then unloaded."""
    for number in (1, 2, 3):
        await world.publisher.publish()
        await world.until_serving(number, ServingStatus.LIVE)
    await world.until_serving(1, ServingStatus.UNLOADED)
    assert all(len(engine.adapters) == 2 for engine in world.engines.values())
    assert all(deployment.holding(POLICY, 1) is None for deployment in await world.stored())


async def test_a_pinned_episode_keeps_its_version_until_the_drain_ends(
    world: World, make_config: Callable[..., HoneConfig]
):
    """While an Episode runs on it, a draining version stays loaded; once the Episode ends, it goes."""
    patient = world.config.model_copy(update={"fleet": world.config.fleet.model_copy(update={"drain_seconds": 60.0})})
    await world.fleet.stop()
    async with running(patient, world.store, world.base):
        episode = Episode(id=new_id(EPISODE), tenant_id="ten", policy=POLICY, version=1)
        async with world.store.transaction() as unit:
            await unit.episodes.add(episode)
        for number in (1, 2, 3):
            await world.publisher.publish()
            await world.until_serving(number, ServingStatus.LIVE)
        await world.until_serving(1, ServingStatus.DRAINING)
        assert await world.names(1) == set()
        await asyncio.sleep(1.5)
        assert all(len(engine.adapters) == 3 for engine in world.engines.values())
        async with world.store.transaction() as unit:
            await unit.episodes.update(episode.model_copy(update={"status": EpisodeStatus.EXPIRED}))
        await world.until_serving(1, ServingStatus.UNLOADED)
        assert all(len(engine.adapters) == 2 for engine in world.engines.values())


async def test_a_pinned_episode_outlasts_the_drain_until_room_is_needed(world: World):
    """Past ``fleet.drain_seconds`` it keeps its version while replicas have room, and loses it to a wanted one."""
    async with world.store.transaction() as unit:
        await unit.episodes.add(Episode(id=new_id(EPISODE), tenant_id="ten", policy=POLICY, version=1))
    for number in (1, 2, 3):
        await world.publisher.publish()
        await world.until_serving(number, ServingStatus.LIVE)
    await world.until_serving(1, ServingStatus.DRAINING)
    await asyncio.sleep(3 * world.config.fleet.drain_seconds + 0.5)
    assert all(len(engine.adapters) == 3 for engine in world.engines.values())
    await world.promote(2)
    await world.publisher.publish()
    await world.until_serving(4, ServingStatus.LIVE)
    await world.until_serving(1, ServingStatus.UNLOADED)
    await world.until(lambda: all(len(engine.adapters) == 3 for engine in world.engines.values()))
    assert await world.names(2) and await world.names(3) and await world.names(4)


async def test_promoted_and_previous_stay_loaded(world: World):
    """Rollback finds its version loaded, however many candidates follow."""
    for number in (1, 2):
        await world.publisher.publish()
        await world.until_serving(number, ServingStatus.LIVE)
    await world.promote(2, previous=1)
    for number in (3, 4):
        await world.publisher.publish()
        await world.until_serving(number, ServingStatus.LIVE)
    assert await world.names(1) and await world.names(2)
    await world.until_serving(3, ServingStatus.UNLOADED)
    assert await world.names(1) and await world.names(2) and await world.names(4)


async def test_an_unloaded_version_is_brought_back_when_promoted(world: World):
    """Promotion of a version that was unloaded loads it again."""
    for number in (1, 2, 3):
        await world.publisher.publish()
        await world.until_serving(number, ServingStatus.LIVE)
    await world.until_serving(1, ServingStatus.UNLOADED)
    await world.promote(1)
    await world.until_serving(1, ServingStatus.LIVE)
    assert await world.names(1)


async def test_the_next_fleet_takes_over_without_a_gap(world: World):
    """A fleet that restarts keeps Deployment ids and loaded versions, and loads nothing again."""
    await world.publisher.publish()
    await world.until_serving(1, ServingStatus.LIVE)
    before = await world.stored()
    loads = [list(engine.loads) for engine in world.engines.values()]
    await world.fleet.stop(stop_engines=False)
    assert [one.status for one in await world.stored()] == [DeploymentStatus.READY] * 2
    async with running(world.config, world.store, world.base):
        after = await world.stored()
    assert {one.id: one.loaded for one in after} == {one.id: one.loaded for one in before}
    assert [list(engine.loads) for engine in world.engines.values()] == loads


async def test_what_a_killed_fleet_began_is_cleared_away(world: World):
    """An adapter of ours that nobody recorded is unloaded; names of others stay."""
    await world.publisher.publish()
    await world.until_serving(1, ServingStatus.LIVE)
    engine = world.engines["standard"]
    identity = engine.identity(next(iter(engine.adapters)))
    engine.adapters |= {f"{POLICY}.v9-0123abcd": identity, "somebody-else": identity}
    await world.until(lambda: f"{POLICY}.v9-0123abcd" not in engine.adapters)
    assert "somebody-else" in engine.adapters


async def test_a_version_without_a_checkpoint_waits(world: World):
    """A version is minted before its folder is published: it is not refused meanwhile."""
    async with world.store.transaction() as unit:
        await unit.versions.mint(POLICY, kind="lora", origin="grpo")
    await world.publisher.publish()
    await world.until_serving(2, ServingStatus.LIVE)
    assert (await world.publisher.version(1)).serving is ServingStatus.WANTED


async def test_engines_of_others_outlast_the_fleet(world: World):
    """A fleet that stops takes no traffic from engines that somebody else runs: what they hold stays listed."""
    await world.publisher.publish()
    await world.until_serving(1, ServingStatus.LIVE)
    await world.fleet.stop()
    stored = await world.stored()
    assert [one.status for one in stored] == [DeploymentStatus.READY] * 2
    assert all(one.holding(POLICY, 1) is not None for one in stored)


async def test_a_probe_of_a_near_parent_is_marked(world: World):
    """Where parent and child agree, the version is served and the record says on what its identity rests."""
    first = await world.publisher.publish()
    await world.until_serving(1, ServingStatus.LIVE)
    await world.fleet.stop(stop_engines=False)
    path = world.publisher.path(first.version)
    twin = world.publisher.path(2)
    async with world.store.transaction() as unit:
        await unit.versions.mint(POLICY, kind="lora", origin="grpo")
        shutil.copytree(path, twin)
        checkpoint = await unit.checkpoints.for_version(POLICY, 1)
        fields = {"id": "ckpt_twin", "version": 2, "path": str(twin), "probe": probe_of(twin, parent=path)}
        await unit.checkpoints.add(checkpoint.model_copy(update=fields))
    async with running(world.config, world.store, world.base):
        await world.until_serving(2, ServingStatus.LIVE)
        held = (await world.stored())[0].holding(POLICY, 2)
        assert held is not None and held.probe.indistinguishable and "checksum" in held.probe.reason


async def test_replicas_that_share_processors_both_load(world: World):
    """Two CPU engines that take turns both hold a new version with a passed probe, and it goes live."""
    for replica in world.fleet._replicas:
        replica.shares_processors = True
    await world.publisher.publish()
    await world.until_serving(1, ServingStatus.LIVE)
    held = [deployment.holding(POLICY, 1) for deployment in await world.stored()]
    assert [one is not None and one.probe.passed for one in held] == [True, True]


async def test_every_running_episode_keeps_its_version(world: World, monkeypatch: pytest.MonkeyPatch):
    """A version stays busy however many newer Episodes run on others."""
    monkeypatch.setattr("serving.fleet_records._EPISODES_PER_PAGE", 2)
    async with world.store.transaction() as unit:
        for number in (1, 2, 2, 2, None, None, 3):
            await unit.episodes.add(Episode(id=new_id(EPISODE), tenant_id="ten", policy=POLICY, version=number))
    assert await world.fleet._records.busy([POLICY]) == {(POLICY, 1), (POLICY, 2), (POLICY, 3)}


async def test_a_failed_warm_up_costs_no_launch(world: World, monkeypatch: pytest.MonkeyPatch):
    """An engine that cannot score the warm-up's prompts is served all the same."""

    async def refuse(*_: Any) -> list[float | None]:
        raise EngineError("cannot score")

    (replica, *_) = world.fleet._replicas
    monkeypatch.setattr(replica.engine, "prompt_logprobs", refuse)
    await world.fleet._warm_up(replica)
    assert replica.ready
