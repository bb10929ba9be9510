"""The HTTP side of weight transfers over NCCL, against a server that follows vLLM's routes; no GPU is involved."""

import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from core.errors import AdapterRejected, EngineUnavailable
from serving.weights.nccl_wire import NcclWire, SenderProcess
from serving.weights.wire import WeightLoader
from tests.full_harness import weights_of, write_model
from tests.scripted_weight_engine import FakeSender, ScriptedEngine, scripted_engine


@pytest.fixture
async def engine() -> AsyncIterator[ScriptedEngine]:
    """A running ScriptedEngine."""
    async with scripted_engine() as scripted:
        yield scripted


async def test_a_transfer_follows_the_routes_of_vllm(engine: ScriptedEngine, tmp_path: Path) -> None:
    """Join once, then start, update while the sender sends, finish with the label; names, shapes and dtypes agree."""
    sender = FakeSender(engine)
    wire = NcclWire(sender=sender, address="10.0.0.1", port=8450)
    weights = weights_of(write_model(tmp_path / "v"), 7)
    loader: WeightLoader = engine
    await wire.apply(loader, weights)
    await wire.apply(loader, weights)
    await wire.close()
    once = ["/start_weight_update", "/update_weights", "/finish_weight_update"]
    assert [path for path, _ in engine.calls] == ["/get_world_size", "/init_weight_transfer_engine", *once, *once]
    bodies = dict(engine.calls)
    group = bodies["/init_weight_transfer_engine"]["init_info"]
    assert (group["master_address"], group["master_port"], group["world_size"]) == ("10.0.0.1", 8450, 3)
    assert (group["rank_offset"], group["packed"]) == (1, True)
    update = bodies["/update_weights"]["update_info"]
    assert update["names"] == sorted(update["names"])
    shapes = dict(zip(update["names"], update["shapes"], strict=True))
    assert shapes["model.embed_tokens.weight"] == [64, 8]
    assert set(update["dtype_names"]) == {"float32"}
    assert bodies["/finish_weight_update"] == {"weight_version": "coder@7"}
    assert sender.done == [("join", "10.0.0.1", 8450, 3), ("send", weights.path), ("send", weights.path)]
    assert sender.closed


async def test_a_failing_sender_ends_the_transfer(engine: ScriptedEngine, tmp_path: Path) -> None:
    """The engine's call, which waits for tensors that never come, is not waited for; the group is opened anew."""
    sender = FakeSender(engine)
    wire = NcclWire(sender=sender, address="10.0.0.1", port=8450)
    weights = weights_of(write_model(tmp_path / "v"), 1)
    sender.fail = True
    async with asyncio.timeout(10):
        with pytest.raises(EngineUnavailable, match="the sender is away"):
            await wire.apply(engine, weights)
    sender.fail = False
    await wire.apply(engine, weights)
    assert [path for path, _ in engine.calls].count("/init_weight_transfer_engine") == 2
    await wire.close()


@pytest.mark.parametrize(("status", "error"), [(404, AdapterRejected), (500, EngineUnavailable)])
async def test_the_engines_refusal_is_told(
    engine: ScriptedEngine, tmp_path: Path, status: int, error: type[Exception]
) -> None:
    """A route that is not there and an engine that fails are told apart."""
    engine.fail["/start_weight_update"] = status
    wire = NcclWire(sender=FakeSender(engine), address="10.0.0.1", port=8450)
    with pytest.raises(error, match="/start_weight_update"):
        await wire.apply(engine, weights_of(write_model(tmp_path / "v"), 1))
    await wire.close()


async def test_the_sender_is_a_process_that_answers_each_command(tmp_path: Path) -> None:
    """Commands go out as lines and errors come back as EngineUnavailable; a sender that ended is started anew."""
    script = tmp_path / "sender.py"
    script.write_text(
        "import json, sys\n"
        "for line in sys.stdin:\n"
        "    command = json.loads(line)\n"
        "    if command['do'] == 'send' and command['path'] == '/bad':\n"
        "        print(json.dumps({'error': 'no such folder'}), flush=True)\n"
        "    elif command['do'] == 'send' and command['path'] == '/die':\n"
        "        sys.exit(1)\n"
        "    else:\n"
        "        print(json.dumps({'ok': True}), flush=True)\n"
    )
    sender = SenderProcess(python=sys.executable, script=script)
    await sender.join("http://e", address="a", port=1, world_size=2)
    await sender.send("http://e", "/good")
    for path, reason in (("/bad", "no such folder"), ("/die", "it ended")):
        with pytest.raises(EngineUnavailable, match=reason):
            await sender.send("http://e", path)
    await sender.send("http://e", "/good")
    await sender.close()
