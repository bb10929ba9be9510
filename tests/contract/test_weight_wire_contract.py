"""What every WeightWire promises: an engine that was given weights says so, and failures are told apart."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from core.errors import AdapterRejected, EngineUnavailable
from serving.engines.fake import FakeEngineServer
from serving.engines.vllm import VllmEngine
from serving.weights.nccl_wire import NcclWire
from serving.weights.wire import DiskWire, WeightLoader, WeightWire
from tests.full_harness import BASE, weights_of, write_model
from tests.scripted_weight_engine import FakeSender, scripted_engine


@dataclass
class Wired:
    """A wire with an engine at its end, and ways to see and to break it."""

    wire: WeightWire
    engine: WeightLoader
    label: Callable[[], str]
    refuse: Callable[[], None]
    kill: Callable[[], Awaitable[None]]


async def _disk(stack: AsyncExitStack, folder: Path) -> Wired:
    server = FakeEngineServer(base_name=BASE, base_path=write_model(folder / "base"))
    await stack.enter_async_context(server)
    engine = VllmEngine(server.url, request_seconds=3.0)
    stack.push_async_callback(engine.close)
    fail = server.weights.fail_next
    return Wired(
        DiskWire(), engine, lambda: server.weights.label, lambda: fail.update(reload="does not fit"), server.stop
    )


async def _nccl(stack: AsyncExitStack, folder: Path) -> Wired:
    engine = await stack.enter_async_context(scripted_engine())
    sender = FakeSender(engine)

    async def kill() -> None:
        sender.fail = True

    wire = NcclWire(sender=sender, address="127.0.0.1", port=8450)
    return Wired(wire, engine, lambda: engine.label, lambda: engine.fail.update({"/update_weights": 400}), kill)


@pytest.fixture(params=[_disk, _nccl], ids=["disk", "nccl"])
async def wired(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Wired]:
    """Each wire in turn."""
    async with AsyncExitStack() as stack:
        made: Wired = await request.param(stack, tmp_path)
        yield made
        await made.wire.close()


async def test_the_engine_has_the_label_of_what_it_was_given(wired: Wired, tmp_path: Path) -> None:
    """After a transfer the engine's weights are labelled; another one replaces them."""
    for number in (1, 2):
        weights = weights_of(write_model(tmp_path / f"v{number}", seed=number), number)
        await wired.wire.apply(wired.engine, weights)
        assert wired.label() == f"coder@{number}"


async def test_weights_that_do_not_fit_are_rejected(wired: Wired, tmp_path: Path) -> None:
    """An engine's refusal is AdapterRejected, the label stays, and the next transfer works."""
    weights = weights_of(write_model(tmp_path / "v1", seed=1), 1)
    wired.refuse()
    with pytest.raises(AdapterRejected):
        await wired.wire.apply(wired.engine, weights)
    assert wired.label() == "default"
    await wired.wire.apply(wired.engine, weights)
    assert wired.label() == "coder@1"


async def test_an_end_that_is_away_is_unavailable(wired: Wired, tmp_path: Path) -> None:
    """A dead engine or sender says nothing about the version."""
    await wired.kill()
    with pytest.raises(EngineUnavailable):
        await wired.wire.apply(wired.engine, weights_of(write_model(tmp_path / "v1", seed=1), 1))


async def test_closing_twice_is_no_error(wired: Wired) -> None:
    """A fleet that is stopped and started again closes its wire each time."""
    await wired.wire.close()
    await wired.wire.close()
