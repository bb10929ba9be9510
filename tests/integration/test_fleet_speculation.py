"""The fleet's watch over speculation, on two attached fake engines and a real store."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from core.config.schema import HoneConfig
from core.deployment import Deployment, DeploymentStatus
from core.message import Usage
from core.policy import ServingStatus
from core.sameness import SamenessCheck
from core.turn import SpeculationCounts
from core.variant import Variant
from serving.engines.base import EngineMetrics
from serving.engines.fake import FakeEngineServer
from serving.fleet import Fleet
from serving.fleet_records import FleetRecords
from serving.replica import Replica
from serving.speculation import sameness_keeper
from serving.speculation.control import SpeculationControl
from serving.speculation.metrics import SpeculationMetrics
from serving.speculation.sameness import SamenessRule
from store.store import Store
from tests import nouns
from tests.serving_harness import BASE, POLICY, Publisher, write_base

PATIENCE = 60.0


class World:
    """A fleet that compares its replicas all the time."""

    def __init__(self, store: Store, publisher: Publisher, fast: FakeEngineServer, registry: Any) -> None:
        self.store = store
        self.publisher = publisher
        self.fast = fast
        self.registry = registry

    async def fast_deployment(self) -> Deployment:
        """The fast replica as others see it."""
        async with self.store.reading() as unit:
            return next(one for one in await unit.deployments.list() if one.variant is Variant.FAST)

    async def checks(self) -> list[SamenessCheck]:
        """All comparisons so far, newest first."""
        async with self.store.reading() as unit:
            return await unit.sameness.list(base=BASE)

    async def until(self, condition: Callable[[], Any]) -> None:
        """Wait until an async condition holds."""
        async with asyncio.timeout(PATIENCE):
            while not await condition():
                await asyncio.sleep(0.02)

    async def serve_a_version(self) -> None:
        """Publish a version and wait until both replicas hold it."""
        await self.publisher.publish()

        async def live() -> bool:
            return (await self.publisher.version(1)).serving is ServingStatus.LIVE

        await self.until(live)

    def metric(self, name: str) -> list[str]:
        """Lines of one metric."""
        return [line for line in generate_latest(self.registry).decode().splitlines() if line.startswith(name)]


@pytest.fixture
async def world(
    tmp_path: Path, fresh_sqlite_url: str, make_config: Callable[..., HoneConfig], open_store: Any
) -> AsyncIterator[World]:
    """A ready fleet with a standard and a fast replica."""
    async with (
        FakeEngineServer(base_name=BASE) as standard,
        FakeEngineServer(base_name=BASE, speculative=True) as fast,
    ):
        overrides = {
            "store.url": fresh_sqlite_url,
            "fleet.attach": {"standard": standard.url, "fast": fast.url},
            "fleet.reconcile_seconds": 0.1,
            "fleet.sameness_seconds": 0.05,
            "fleet.sameness_tokens": 6,
            "fleet.sameness_samples": 2,
        }
        store = await open_store(fresh_sqlite_url, overrides)
        base = write_base(tmp_path / "base")
        publisher = Publisher(store, base, tmp_path)
        await publisher.start()
        registry = CollectorRegistry()
        fleet = Fleet(config=make_config(overrides), store=store, base=base, registry=registry)
        await fleet.start()
        try:
            await fleet.wait_ready(PATIENCE)
            yield World(store, publisher, fast, registry)
        finally:
            await fleet.stop()


async def test_equal_replicas_are_compared_again_and_again(world: World) -> None:
    """Base and version take turns, results are stored and shown, and speculation stays on."""
    await world.serve_a_version()

    async def both_seen() -> bool:
        return {(one.policy, one.version) for one in await world.checks()} >= {(BASE, 0), (POLICY, 1)}

    await world.until(both_seen)
    assert all(check.same and check.prompts == 2 for check in await world.checks())
    deployment = await world.fast_deployment()
    assert deployment.speculating and deployment.sameness_seen is not None and deployment.sameness_seen.same
    assert world.metric("hone_sameness_alarm")[0].endswith(" 0.0")
    assert any("equal" in line for line in world.metric("hone_sameness_outputs_total"))


async def test_a_replica_that_answers_otherwise_is_used_no_more(world: World) -> None:
    """A proven difference raises the alarm, switches speculation off in the engine, and says so."""
    await world.serve_a_version()
    [name] = world.fast.adapters
    world.fast.adapters[name] = "somebody else's weights"

    async def stopped() -> bool:
        return not (await world.fast_deployment()).speculating

    await world.until(stopped)
    deployment = await world.fast_deployment()
    assert "answers differ" in (deployment.speculating_reason or "")
    assert deployment.sameness_seen is not None and not deployment.sameness_seen.same
    different = next(check for check in await world.checks() if not check.same)
    assert (different.policy, different.version) == (POLICY, 1) and different.mismatches > 0
    assert not world.fast.weights.speculating
    assert world.metric("hone_sameness_alarm")[0].endswith(" 1.0")


async def test_a_difference_is_looked_for_again_in_other_prompts(
    tmp_path: Path,
    fresh_sqlite_url: str,
    make_config: Callable[..., HoneConfig],
    open_store: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The second comparison takes other prompts than the first, and near-ties are those of the engine's dtype."""
    asked: list[tuple[tuple[int, ...], ...]] = []
    bounds: set[float] = set()

    async def differs(standard: Any, fast: Any, prompts: Any, *, subject: Any, rule: SamenessRule, **_: Any) -> Any:
        asked.append(tuple(prompts))
        bounds.add(rule.near_tie)
        fields = {"id": f"same_{len(asked)}", "base": BASE, "policy": BASE, "version": 0}
        ends = {"standard_id": standard.deployment_id, "fast_id": fast.deployment_id}
        return SamenessCheck(**fields, **ends, prompts=len(prompts), same=False, reason="said so")

    monkeypatch.setattr(sameness_keeper, "compare", differs)
    overrides = {"store.url": fresh_sqlite_url, "engine.dtype": "bfloat16"}
    store, config = await open_store(fresh_sqlite_url, overrides), make_config(overrides)
    base, drive = write_base(tmp_path / "base"), Drive(store, config, tmp_path / "driven")
    keeper = sameness_keeper.SamenessKeeper(
        config=config,
        store=store,
        base=base,
        records=FleetRecords(store=store, base=base, max_loaded=4),
        control=drive.control,
        metrics=SpeculationMetrics(CollectorRegistry()),
    )
    [check] = await keeper.step([drive.standard, drive.fast])
    assert not check.same and not drive.fast.deployment.speculating
    first, second = asked
    assert len(first) == len(second) == config.fleet.sameness_prompts and not set(first) & set(second)
    assert bounds == {0.25}


class SwitchedEngine:
    """An engine that only remembers what it was told."""

    url = "http://engine"

    def __init__(self) -> None:
        self.told: list[bool] = []

    async def set_speculation(self, on: bool) -> None:
        self.told.append(on)


class Drive:
    """Two replicas whose counters are written by hand, under a control with a clock of its own."""

    def __init__(self, store: Store, config: HoneConfig, base_path: Path) -> None:
        self.now = 0.0
        self.control = SpeculationControl(
            config=config,
            store=store,
            base=write_base(base_path),
            metrics=SpeculationMetrics(CollectorRegistry()),
            clock=lambda: self.now,
        )
        self.engine = SwitchedEngine()
        self.standard = self._replica(Variant.STANDARD)
        self.fast = self._replica(Variant.FAST)

    def _replica(self, variant: Variant) -> Replica:
        ready = nouns.deployment(
            id=f"dep_{variant}", variant=variant, load=nouns.load(), status=DeploymentStatus.READY
        )
        return Replica(deployment=ready, engine=self.engine)  # type: ignore[arg-type]

    async def seconds(self, *, standard: float, fast: float, steps: int) -> None:
        """Some readings, ten seconds apart, in which one request at a time is decoded at these tokens/s."""
        for _ in range(steps):
            self.now += 10.0
            for replica, rate in ((self.standard, standard), (self.fast, fast)):
                before = replica.counters
                replica.counters = EngineMetrics(
                    decoded_tokens=before.decoded_tokens + 10.0 * rate, decode_seconds=before.decode_seconds + 10.0
                )
            await self.control.step([self.standard, self.fast])


@pytest.fixture
async def drive(
    tmp_path: Path, fresh_sqlite_url: str, make_config: Callable[..., HoneConfig], open_store: Any
) -> Drive:
    """A control without a fleet."""
    overrides = {"store.url": fresh_sqlite_url}
    store = await open_store(fresh_sqlite_url, overrides)
    return Drive(store, make_config(overrides), tmp_path / "base")


async def test_speculation_follows_what_it_gains(drive: Drive) -> None:
    """On while it gains, off when it makes things slower, on again by trial, and each time the engine is told."""
    await drive.seconds(standard=10.0, fast=20.0, steps=5)
    assert drive.fast.deployment.speculating and drive.engine.told == []
    await drive.seconds(standard=10.0, fast=4.0, steps=8)
    assert not drive.fast.deployment.speculating and drive.engine.told == [False]
    assert "times the standard speed" in (drive.fast.deployment.speculating_reason or "")
    assert drive.fast.changed
    await drive.seconds(standard=10.0, fast=10.0, steps=40)
    assert drive.fast.deployment.speculating and drive.engine.told == [False, True]
    assert drive.fast.deployment.speculating_reason is None


async def test_a_mismatch_lasts_until_the_engine_starts_anew(drive: Drive) -> None:
    """No reading switches it on again; a new life of the engine does."""
    await drive.seconds(standard=10.0, fast=20.0, steps=2)
    await drive.control.stop_for_mismatch(drive.fast, "its answers differ")
    await drive.seconds(standard=10.0, fast=20.0, steps=1000)
    assert not drive.fast.deployment.speculating
    drive.fast.life += 1
    await drive.seconds(standard=10.0, fast=20.0, steps=1)
    assert drive.fast.deployment.speculating and drive.fast.deployment.speculating_reason is None


async def test_acceptance_is_shown_by_version_and_domain(
    tmp_path: Path, fresh_sqlite_url: str, make_config: Callable[..., HoneConfig], open_store: Any
) -> None:
    """What recent Turns of this Base's Policies say becomes a metric."""
    overrides = {"store.url": fresh_sqlite_url, "fleet.speculation_seconds": 0.01}
    store = await open_store(fresh_sqlite_url, overrides)
    base, registry = write_base(tmp_path / "base"), CollectorRegistry()
    await Publisher(store, base, tmp_path).start()
    ours, others = nouns.episode(domain="code"), nouns.episode(policy="somebody")
    counts = SpeculationCounts(drafted=8, accepted=4, steps=2, accepted_at=(2, 2))
    fields = {"speculation": counts, "usage": Usage(completion_tokens=6), "variant": Variant.FAST}
    async with store.transaction() as work:
        for episode in (ours, others):
            await work.episodes.add(episode)
            await work.turns.add_many([nouns.turn(episode_id=episode.id, policy=episode.policy, **fields)])
    metrics = SpeculationMetrics(registry)
    control = SpeculationControl(config=make_config(overrides), store=store, base=base, metrics=metrics)
    task = asyncio.create_task(control.run([]))
    labels = {"policy": POLICY, "version": "1", "domain": "code"}
    try:
        async with asyncio.timeout(PATIENCE):
            while registry.get_sample_value("hone_speculation_acceptance", labels) is None:
                await asyncio.sleep(0.02)
    finally:
        task.cancel()
    assert registry.get_sample_value("hone_speculation_acceptance", labels) == 0.5
    assert registry.get_sample_value("hone_speculation_tokens_per_step", labels) == 3.0
    assert "somebody" not in generate_latest(registry).decode()
