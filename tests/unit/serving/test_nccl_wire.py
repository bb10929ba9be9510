"""The HTTP side of weight transfers over NCCL, against a server that follows vLLM's routes; no GPU is involved."""

import asyncio
import errno
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from core.errors import AdapterRejected, EngineError, EngineUnavailable, EngineUnsupported, StoreError
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


@pytest.mark.parametrize(
    ("path", "status", "error"),
    [
        ("/get_world_size", 404, EngineUnsupported),
        ("/init_weight_transfer_engine", 400, EngineError),
        ("/start_weight_update", 404, EngineUnsupported),
        ("/start_weight_update", 400, EngineError),
        ("/start_weight_update", 500, EngineUnavailable),
        ("/update_weights", 400, AdapterRejected),
        ("/update_weights", 404, EngineUnsupported),
        ("/update_weights", 429, EngineError),
        ("/finish_weight_update", 400, EngineError),
    ],
)
async def test_only_a_refusal_of_the_tensors_blames_the_version(
    engine: ScriptedEngine, tmp_path: Path, path: str, status: int, error: type[Exception]
) -> None:
    """A route that is not there, a group that is not open and an engine that fails are no fault of the version."""
    engine.fail[path] = status
    wire = NcclWire(sender=FakeSender(engine), address="10.0.0.1", port=8450)
    with pytest.raises(EngineError, match=path) as caught:
        await wire.apply(engine, weights_of(write_model(tmp_path / "v"), 1))
    assert type(caught.value) is error
    await wire.close()


async def test_a_folder_that_cannot_be_read_at_the_moment_is_not_refused(
    engine: ScriptedEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Too many open files say nothing about the version."""
    wire = NcclWire(sender=FakeSender(engine), address="10.0.0.1", port=8450)
    weights = weights_of(write_model(tmp_path / "v"), 1)

    def full(*_args: object) -> None:
        raise OSError(errno.EMFILE, "too many open files")

    with monkeypatch.context() as patch, pytest.raises(StoreError) as caught:
        patch.setattr(Path, "open", full)
        await wire.apply(engine, weights)
    assert type(caught.value) is StoreError
    await wire.apply(engine, weights)
    await wire.close()


async def test_each_engine_keeps_its_port_and_all_are_joined_anew_after_a_failure(
    engine: ScriptedEngine, tmp_path: Path
) -> None:
    """A sender that failed has lost all its groups; none is opened again on a port that is another engine's."""
    async with scripted_engine() as other:
        other.joined.set()
        other.sent.set()
        sender = FakeSender(engine)
        wire = NcclWire(sender=sender, address="10.0.0.1", port=8450)
        weights = weights_of(write_model(tmp_path / "v"), 1)
        await wire.apply(engine, weights)
        await wire.apply(other, weights)
        sender.fail = True
        with pytest.raises(EngineUnavailable):
            await wire.apply(engine, weights)
        assert sender.closed
        sender.fail = False
        await wire.apply(other, weights)
        await wire.apply(engine, weights)
        await wire.close()
    assert [step[2] for step in sender.done if step[0] == "join"] == [8450, 8451, 8451, 8450]


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
    sender = SenderProcess(python=sys.executable, script=script, environment={})
    await sender.join("http://e", address="a", port=1, world_size=2)
    await sender.send("http://e", "/good")
    for path, reason in (("/bad", "no such folder"), ("/die", "it ended")):
        with pytest.raises(EngineUnavailable, match=reason):
            await sender.send("http://e", path)
    await sender.send("http://e", "/good")
    await sender.close()
