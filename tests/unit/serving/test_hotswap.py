"""What is checked before an engine is asked to load a version, and who waits for whom while it is loaded."""

import asyncio
import json
import struct
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from core.config.load import load_config
from core.deployment import Deployment
from core.errors import CorruptArtefact, EngineError
from core.policy import PolicyVersion
from core.variant import Variant
from serving import hotswap, reconciler
from serving.engines.vllm import VllmEngine
from serving.fleet_metrics import FleetMetrics
from serving.reconciler import Reconciler
from serving.replica import Replica
from tests.serving_harness import BASE, POLICY, checkpoint_of, write_adapter, write_base


def no_alpha(adapter: Path) -> None:
    file = adapter / "adapter_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"lora_alpha": None}))


def nested_config(adapter: Path) -> None:
    (adapter / "adapter_config.json").write_text("[" * 200_000)


def huge_shape(adapter: Path) -> None:
    entry = {"dtype": "F32", "shape": [2**70, 4], "data_offsets": [0, 4]}
    header = json.dumps({"base_model.model.x.lora_A.weight": entry}).encode()
    (adapter / "adapter_model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + bytes(4))


def unreadable_weights(adapter: Path) -> None:
    (adapter / "adapter_model.safetensors").unlink()
    (adapter / "adapter_model.safetensors").mkdir()


@pytest.mark.parametrize("damage", [no_alpha, nested_config, huge_shape, unreadable_weights])
def test_an_odd_artefact_is_corrupt_whatever_is_odd(tmp_path, damage):
    """Nothing in an adapter's folder raises more than a refusal of its version."""
    base = write_base(tmp_path / "base")
    adapter = write_adapter(tmp_path / "adapter", Path(base.path))
    probe = checkpoint_of(adapter, base, 1).probe
    damage(adapter)
    with pytest.raises(CorruptArtefact) as refused:
        hotswap.check_artefact(checkpoint_of(adapter, base, 1, probe), base=base, max_rank=16)
    assert isinstance(refused.value, hotswap.DEFINITE)


@pytest.mark.parametrize(("shares_processors", "most"), [(True, 1), (False, 3)])
async def test_engines_that_share_processors_load_in_turn(tmp_path, monkeypatch, shares_processors, most):
    """CPU engines of one machine load one after the other, others at once; outcomes keep the replicas' order."""
    running = most_running = 0

    async def swap_in(engine, version, checkpoint, *, max_error, decided_at):
        nonlocal running, most_running
        running += 1
        most_running = max(most_running, running)
        await asyncio.sleep(0.01)
        running -= 1
        if engine.url == "http://b":
            raise EngineError("b is busy")
        return engine.url

    monkeypatch.setattr(reconciler, "swap_in", swap_in)
    base = write_base(tmp_path / "base")
    checkpoint = checkpoint_of(write_adapter(tmp_path / "adapter", Path(base.path)), base, 1)
    subject = Reconciler(
        config=load_config(environment={}, overrides={}),
        base=base,
        records=None,
        metrics=FleetMetrics(CollectorRegistry()),
    )
    replicas = [
        Replica(
            deployment=Deployment(id=url, base=BASE, variant=Variant.STANDARD, engine="fake", url=url),
            engine=VllmEngine(url),
            shares_processors=shares_processors,
        )
        for url in ("http://a", "http://b", "http://c")
    ]
    version = PolicyVersion(policy=POLICY, version=1, kind="lora", origin="grpo")
    outcomes = await subject._try_all(replicas, version, checkpoint, 0.0)
    assert (outcomes[0], outcomes[2]) == ("http://a", "http://c")
    assert isinstance(outcomes[1], EngineError)
    assert most_running == most
