"""Hot-swap of full weights on one replica: the order, and what a failure at each step leaves behind."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from core.deployment import Deployment, DeploymentStatus
from core.errors import AdapterRejected, CorruptArtefact, EngineError, EngineUnavailable, ProbeFailed
from core.variant import Variant
from serving.engines.fake import FakeEngineServer
from serving.engines.fake_weights import Step
from serving.engines.vllm import VllmEngine
from serving.full_checksums import FullChecksums
from serving.full_swap import FullSwap, SwapFailed
from serving.replica import Replica
from serving.weights.wire import DiskWire, FullWeights
from tests.full_harness import BASE, CONFIG, full_base, full_probe, weights_of, write_model

Log = list[str]


@dataclass
class Swapping:
    """One replica, and what happened to it in order."""

    server: FakeEngineServer
    replica: Replica
    swap: FullSwap
    base: FullWeights
    first: FullWeights
    second: FullWeights
    log: Log = field(default_factory=list)

    @property
    def status(self) -> DeploymentStatus:
        return self.replica.deployment.status

    async def run(self, wanted: FullWeights, before: FullWeights | None) -> SwapFailed | None:
        """Swap with an empty record of the engine's steps."""
        self.server.weights.steps.clear()
        self.log.clear()
        return await self.swap.run(self.replica, wanted, before)

    async def at_first(self) -> None:
        """Bring the replica to its first version."""
        assert await self.run(self.base, None) is None
        assert await self.run(self.first, self.base) is None
        assert self.server.weights.label == "coder@1"


async def _swapping(tmp_path: Path, *, architecture: str = "LlamaForCausalLM") -> AsyncIterator[Swapping]:
    config = CONFIG | {"architectures": [architecture]}
    base = full_base(tmp_path / "base", config=config)
    paths = [write_model(tmp_path / f"v{number}", seed=number, config=config) for number in (1, 2)]
    async with FakeEngineServer(base_name=BASE, base_path=Path(base.path)) as server:
        engine = VllmEngine(server.url, request_seconds=3.0)
        replica = Replica(
            deployment=Deployment(id="dep", base=BASE, variant=Variant.STANDARD, engine="fake", url=server.url),
            engine=engine,
        )
        log: Log = []

        async def commit(one: Replica) -> None:
            # Where in the engine's steps the outside world is told.
            log.append(f"{one.deployment.status.value} after {len(server.weights.steps)}")
            one.changed = False

        swap = FullSwap(
            wire=DiskWire(),
            checksums=FullChecksums(dtype="float32"),
            commit=commit,
            max_error=0.02,
            settle_seconds=0.01,
        )
        weights = [weights_of(Path(base.path), 0), *(weights_of(path, i + 1) for i, path in enumerate(paths))]
        yield Swapping(server, replica, swap, *weights, log)
        await engine.close()


@pytest.fixture
async def swapping(tmp_path: Path) -> AsyncIterator[Swapping]:
    """A replica of a Base whose layout is known."""
    async for one in _swapping(tmp_path):
        yield one


@pytest.fixture
async def unknown(tmp_path: Path) -> AsyncIterator[Swapping]:
    """A replica of a Base whose layout in the engine is not known."""
    async for one in _swapping(tmp_path, architecture="NovelForCausalLM"):
        yield one


async def test_order_of_a_swap(swapping: Swapping) -> None:
    """Routing is closed before the pause and opened after the probe; caches are cleared before the engine goes on."""
    await swapping.at_first()
    assert await swapping.run(swapping.second, swapping.first) is None
    steps = [step for step in swapping.server.weights.steps if step not in ("paused",)]
    assert steps == ["pause", "reload", "label", "clear", "checksum", "resume"]
    assert swapping.log == [f"swapping after {0}", f"ready after {len(swapping.server.weights.steps)}"]
    weights = swapping.replica.deployment.weights
    assert weights is not None
    assert (weights.version, weights.engine_model, weights.probe.passed) == (2, BASE, True)
    assert "checksums are the folder's" in weights.probe.reason
    swaps = [(swap.kind, swap.version, swap.outcome) for swap in swapping.replica.deployment.swaps]
    assert swaps[-1] == ("full", 2, "live")


async def test_a_started_engine_is_not_loaded_again_for_the_base(swapping: Swapping) -> None:
    """Version 0 on a fresh engine is verified by its checksums and opened without a load."""
    assert await swapping.run(swapping.base, None) is None
    assert "reload" not in swapping.server.weights.steps
    assert swapping.status is DeploymentStatus.READY
    assert swapping.replica.deployment.weights is None


@pytest.mark.parametrize("step", ["pause", "clear", "checksum", "resume", "label"])
async def test_a_failing_step_leaves_the_replica_closed_and_the_next_attempt_finishes(
    swapping: Swapping, step: Step
) -> None:
    """Whatever step fails for a passing reason, nothing is opened; trying again ends with the wanted version."""
    await swapping.at_first()
    swapping.server.weights.fail_next[step] = "for once"
    failed = await swapping.run(swapping.second, swapping.first)
    assert failed is not None
    assert not failed.refused
    assert isinstance(failed.error, EngineError)
    assert swapping.status is DeploymentStatus.SWAPPING
    assert swapping.replica.deployment.swaps[-1].outcome == "failed"
    assert await swapping.run(swapping.second, swapping.first) is None
    assert swapping.status is DeploymentStatus.READY
    assert swapping.server.weights.label == "coder@2"
    assert not swapping.server.weights.paused


@pytest.mark.parametrize("step", ["pause", "reload", "clear", "checksum", "resume"])
async def test_an_engine_that_dies_at_a_step_is_brought_to_the_version_after_its_start(
    swapping: Swapping, step: Step
) -> None:
    """A dead engine is no fault of the version; started anew it holds the Base and gets the wanted weights."""
    await swapping.at_first()
    swapping.server.weights.die_next.add(step)
    failed = await swapping.run(swapping.second, swapping.first)
    assert failed is not None
    assert not failed.refused
    assert isinstance(failed.error, EngineUnavailable)
    assert swapping.status is DeploymentStatus.SWAPPING
    swapping.replica.lose("it died")
    await swapping.server.stop()
    await swapping.server.start()
    assert await swapping.run(swapping.second, swapping.first) is None
    assert swapping.server.weights.label == "coder@2"
    assert swapping.status is DeploymentStatus.READY


async def test_a_refused_load_puts_the_version_before_back(swapping: Swapping) -> None:
    """An engine that refuses the folder, its weights undefined by then, gets the version before and is opened."""
    await swapping.at_first()
    swapping.server.weights.fail_next["reload"] = "a tensor does not fit"
    failed = await swapping.run(swapping.second, swapping.first)
    assert failed is not None
    assert failed.refused
    assert isinstance(failed.error, AdapterRejected)
    _back_at_first(swapping)


async def test_wrong_checksums_put_the_version_before_back(swapping: Swapping) -> None:
    """Weights that are not the Checkpoint's are never probed, let alone opened."""
    await swapping.at_first()
    swapping.server.weights.wrong_content = "weights:other"
    requests = len(swapping.server.requests)
    failed = await swapping.run(swapping.second, swapping.first)
    assert failed is not None
    assert isinstance(failed.error, CorruptArtefact)
    assert len(swapping.server.requests) == requests
    # The fake's fault outlives the load: putting the version before back fails too, and the engine is given up.
    assert swapping.status is DeploymentStatus.UNHEALTHY
    swapping.server.weights.wrong_content = None
    assert await swapping.run(swapping.first, swapping.base) is None
    assert swapping.server.weights.label == "coder@1"


async def test_a_failed_probe_puts_the_version_before_back(swapping: Swapping) -> None:
    """Right bytes that answer wrongly are refused: the probe runs with routing closed, then the old one is back."""
    await swapping.at_first()
    wrong = FullWeights(
        policy="coder",
        version=2,
        path=swapping.second.path,
        checksum=swapping.second.checksum,
        probe=full_probe(Path(swapping.first.path)),
    )
    failed = await swapping.run(wrong, swapping.first)
    assert failed is not None
    assert failed.refused
    assert isinstance(failed.error, ProbeFailed)
    assert swapping.log[0].startswith("swapping")
    assert all(entry.startswith("swapping") for entry in swapping.log[:-1])
    _back_at_first(swapping)


async def test_putting_back_brings_the_base_for_version_0(swapping: Swapping) -> None:
    """The version before a Policy's first is the Base's own folder."""
    assert await swapping.run(swapping.base, None) is None
    swapping.server.weights.fail_next["reload"] = "no"
    failed = await swapping.run(swapping.first, swapping.base)
    assert failed is not None
    assert failed.refused
    assert swapping.server.weights.loaded[-1] == swapping.base.path
    assert swapping.server.weights.label == "coder@0"
    assert swapping.status is DeploymentStatus.READY
    assert swapping.replica.deployment.weights is None


async def test_a_fleet_that_was_killed_before_the_probe_is_followed_by_one_that_finishes(swapping: Swapping) -> None:
    """An engine left paused with the wanted weights in place is verified, resumed, probed and opened: no reload."""
    await swapping.at_first()
    swapping.replica.move_to(DeploymentStatus.SWAPPING)
    engine = VllmEngine(swapping.server.url)
    await engine.pause()
    await engine.load_weights(swapping.second.path, label=swapping.second.label)
    await engine.close()
    swapping.replica.changed = False
    assert await swapping.run(swapping.second, swapping.first) is None
    assert "reload" not in swapping.server.weights.steps
    assert swapping.server.weights.steps.index("clear") < swapping.server.weights.steps.index("resume")
    assert not swapping.server.weights.paused
    assert swapping.status is DeploymentStatus.READY


async def test_a_load_that_was_cut_is_not_taken_for_the_version(swapping: Swapping) -> None:
    """The right label over other bytes is no proof: such an engine is loaded again."""
    await swapping.at_first()
    swapping.replica.move_to(DeploymentStatus.SWAPPING)
    swapping.server.weights.label = "coder@2"
    assert await swapping.run(swapping.second, swapping.first) is None
    assert swapping.server.weights.loaded[-1] == swapping.second.path


async def test_unknown_layout_rests_on_a_change_and_then_on_a_proven_replica(unknown: Swapping) -> None:
    """Where no checksums can be computed they must change at first, and later be those of a probed replica."""
    assert await unknown.run(unknown.base, None) is None
    assert await unknown.run(unknown.first, unknown.base) is None
    weights = unknown.replica.deployment.weights
    assert weights is not None
    assert "none are known for this layout" in weights.probe.reason
    assert await unknown.run(unknown.second, unknown.first) is None
    assert await unknown.run(unknown.first, unknown.second) is None
    weights = unknown.replica.deployment.weights
    assert weights is not None
    assert "those of a replica that passed its probe" in weights.probe.reason


async def test_unknown_layout_refuses_weights_that_did_not_change(unknown: Swapping) -> None:
    """An engine that says yes and keeps its old weights is found out even where the layout is unknown."""
    assert await unknown.run(unknown.base, None) is None
    assert await unknown.run(unknown.first, unknown.base) is None
    same = FullWeights(
        policy="coder", version=2, path=unknown.first.path, checksum="another", probe=unknown.first.probe
    )
    failed = await unknown.run(same, unknown.first)
    assert failed is not None
    assert isinstance(failed.error, CorruptArtefact)
    _back_at_first(unknown)


def _draining_after(replica: Replica, step: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    """The step, at whose end the replica is drained for a restart if that is allowed, or closed at least."""

    async def then_drained(*args: Any, **options: Any) -> Any:
        result = await step(*args, **options)
        replica.closed = True
        if replica.ready:
            replica.move_to(DeploymentStatus.DRAINING, "a restart was asked for")
        return result

    return then_drained


async def test_a_replica_that_is_drained_while_the_folder_is_read_is_left_alone(
    swapping: Swapping, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An engine that is about to be restarted is neither paused nor loaded nor opened, and no version is blamed."""
    await swapping.at_first()
    checksums = swapping.swap._checksums
    monkeypatch.setattr(checksums, "expected", _draining_after(swapping.replica, checksums.expected))
    failed = await swapping.run(swapping.second, swapping.first)
    assert failed is not None
    assert (failed.interrupted, failed.refused) == (True, False)
    assert swapping.server.weights.steps == []
    assert swapping.status is DeploymentStatus.DRAINING


async def test_a_replica_that_is_closed_before_the_pause_is_not_paused(
    swapping: Swapping, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Waiting for gateways takes long enough for a restart to begin: what follows looks again."""
    await swapping.at_first()
    monkeypatch.setattr(swapping.swap, "_close", _draining_after(swapping.replica, swapping.swap._close))
    failed = await swapping.run(swapping.second, swapping.first)
    assert failed is not None
    assert failed.interrupted
    assert "pause" not in swapping.server.weights.steps
    assert swapping.status is not DeploymentStatus.READY


@pytest.mark.parametrize("refused", [False, True])
async def test_a_replica_that_is_closed_during_the_swap_is_not_opened(
    swapping: Swapping, monkeypatch: pytest.MonkeyPatch, refused: bool
) -> None:
    """Neither the new version nor the one put back lets requests into an engine that is to be restarted."""
    await swapping.at_first()
    if refused:
        swapping.server.weights.fail_next["reload"] = "a tensor does not fit"
    apply = swapping.swap._apply
    monkeypatch.setattr(swapping.swap, "_apply", _draining_after(swapping.replica, apply))
    failed = await swapping.run(swapping.second, swapping.first)
    assert failed is not None
    assert failed.refused is refused
    assert swapping.status is DeploymentStatus.SWAPPING
    assert not swapping.server.weights.paused


@pytest.mark.parametrize("step", ["pause", "reload", "checksum"])
async def test_a_cancelled_swap_leaves_the_engine_running_and_closed(swapping: Swapping, step: Step) -> None:
    """A fleet that ends in mid-swap does not leave requests frozen in an engine that it leaves behind."""
    await swapping.at_first()
    swapping.server.weights.delay_seconds[step] = 0.3
    swapping.server.weights.steps.clear()
    swap = asyncio.create_task(swapping.run(swapping.second, swapping.first))
    async with asyncio.timeout(30):
        while step not in swapping.server.weights.steps:
            await asyncio.sleep(0.01)
    swap.cancel()
    with pytest.raises(asyncio.CancelledError):
        await swap
    assert swapping.server.weights.steps[-1] == "resume"
    assert not swapping.server.weights.paused
    assert swapping.status is DeploymentStatus.SWAPPING


def _back_at_first(swapping: Swapping) -> None:
    weights = swapping.replica.deployment.weights
    assert weights is not None
    assert weights.version == 1
    assert swapping.server.weights.label == "coder@1"
    assert swapping.server.weights.loaded[-1] == swapping.first.path
    assert not swapping.server.weights.paused
    assert swapping.status is DeploymentStatus.READY
    assert swapping.replica.deployment.swaps[-1].outcome == "rolled_back"
    assert swapping.replica.deployment.swaps[-1].version == 2
