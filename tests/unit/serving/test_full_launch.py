"""How engines are started, and weights brought to them, for a fleet with full weights."""

import json

import pytest

from core.config.load import load_config
from core.errors import ConfigurationError
from core.policy import Base
from serving.full_reconciler import make_wire
from serving.launch import Launch
from serving.weights.nccl_wire import NcclWire, SenderProcess
from serving.weights.wire import DiskWire

BASE = Base(name="smol", path="/models/smol", fingerprint="f")
FULL = {"fleet.full_weights_policy": "coder"}


def _launch(build: str, **overrides: object) -> Launch:
    config = load_config(environment={}, overrides=FULL | overrides)
    return Launch(config=config, base=BASE, build="cuda" if build == "cuda" else "cpu", port=8410)


def test_an_engine_that_carries_full_weights_has_no_adapters() -> None:
    """LoRA costs a quarter of the speed and would be served by nobody; the development routes are needed."""
    launch = _launch("cpu")
    assert "--enable-lora" not in launch.command()
    assert "--lora-target-modules" not in launch.command()
    assert launch.environment()["VLLM_SERVER_DEV_MODE"] == "1"


def test_weight_transfer_is_asked_for_where_it_is_used() -> None:
    """Only a GPU engine of a fleet with the NCCL wire is told of it."""
    command = _launch("cuda", **{"fleet.weight_wire": "nccl"}).command()
    assert json.loads(command[command.index("--weight-transfer-config") + 1]) == {"backend": "nccl"}
    assert "--weight-transfer-config" not in _launch("cuda").command()
    assert "--weight-transfer-config" not in _launch("cpu", **{"fleet.weight_wire": "nccl"}).command()


async def test_the_configured_wire_is_made() -> None:
    """Disk by default, NCCL by name, and a clear error for an engine without vLLM's weight transfer."""
    assert isinstance(make_wire(load_config(environment={}, overrides=FULL)), DiskWire)
    nccl = FULL | {"fleet.weight_wire": "nccl"}
    assert isinstance(make_wire(load_config(environment={}, overrides=nccl)), NcclWire)
    with pytest.raises(ConfigurationError, match=r"fleet\.weight_wire"):
        make_wire(load_config(environment={}, overrides=nccl | {"engine.kind": "sglang"}))


async def test_the_sender_of_weights_has_none_of_hones_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process in the engine's environment gets this one's variables, but no key of Hone's, set here or resolved."""
    monkeypatch.setenv("HONE_STORE__URL", "postgresql://hone:secret@db/hone")
    monkeypatch.setenv("NCCL_DEBUG", "WARN")
    wire = make_wire(load_config(overrides=FULL | {"fleet.weight_wire": "nccl"}))
    assert isinstance(wire, NcclWire)
    assert isinstance(wire._sender, SenderProcess)
    assert wire._sender._environment["NCCL_DEBUG"] == "WARN"
    assert not [key for key in wire._sender._environment if key.startswith("HONE_")]
