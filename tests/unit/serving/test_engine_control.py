"""The engine plugin's control of drafters and speculation, on stand-ins for vLLM's objects."""

import importlib.util
import json
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

from serving.launch import ENGINE_PLUGIN


@pytest.fixture(scope="module")
def plugin():
    """The plugin's module, loaded from its folder as the engine does."""
    spec = importlib.util.spec_from_file_location("hone_engine_control", ENGINE_PLUGIN / "hone_engine_control.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def folder(path, *, layers=2, hidden=4, leave_out=(), config=None):
    """A Hugging Face folder of tiny layers."""
    path.mkdir()
    tensors = {f"model.layers.{layer}.weight": np.zeros((hidden, hidden), np.float32) for layer in range(layers)}
    tensors = {name: tensor for name, tensor in tensors.items() if name not in leave_out}
    save_file(tensors, path / "model.safetensors")
    (path / "config.json").write_text(
        json.dumps({"num_hidden_layers": layers, "hidden_size": hidden} | (config or {}))
    )
    return path


def test_only_a_folder_with_the_same_tensors_fits(plugin, tmp_path):
    """Layers, sizes, missing tensors and missing folders are each told; dtype and further settings are free."""
    running = folder(tmp_path / "running")
    settings = {"num_hidden_layers": 2, "hidden_size": 4}
    assert plugin.unfit(running, folder(tmp_path / "same", config={"note": 1}), settings) is None
    assert "num_hidden_layers" in plugin.unfit(running, folder(tmp_path / "short", layers=1), settings)
    assert "hidden_size" in plugin.unfit(running, folder(tmp_path / "small", hidden=2), settings)
    partial = folder(tmp_path / "partial", leave_out=("model.layers.1.weight",))
    assert "missing" in plugin.unfit(running, partial, settings)
    assert "cannot be read" in plugin.unfit(running, tmp_path / "nowhere", settings)


def core(tokens=3):
    """vLLM's engine core as far as the plugin looks at it."""
    asked = []
    table = SimpleNamespace(
        num_spec_tokens=tokens,
        dynamic_sd_lookup=None,
        scheduler_config=SimpleNamespace(max_num_seqs=2),
        reset_prefix_cache=lambda **options: asked.append(options),
    )
    speculative = SimpleNamespace(uses_draft_model=lambda: True, use_eagle=lambda: False)
    config = SimpleNamespace(
        speculative_config=speculative, scheduler_config=SimpleNamespace(async_scheduling=False), model_config=None
    )
    return SimpleNamespace(scheduler=table, vllm_config=config, asked=asked)


@pytest.fixture
def on_cpu(monkeypatch):
    """A vLLM whose platform is a CPU, or a GPU when the attribute is changed."""
    platform = SimpleNamespace(cpu=True)
    platform.is_cpu = lambda: platform.cpu
    monkeypatch.setitem(sys.modules, "vllm", SimpleNamespace())
    monkeypatch.setitem(sys.modules, "vllm.platforms", SimpleNamespace(current_platform=platform))
    return platform


def test_switching_off_and_on_restores_the_table_and_recomputes(plugin, on_cpu):
    """Off: no draft token for any batch size; on: as before, and nothing computed meanwhile is kept."""
    engine = core()
    assert plugin._switch(engine, on=False) is None and engine.scheduler.dynamic_sd_lookup == [0, 0, 0]
    assert engine.asked == []
    assert plugin._switch(engine, on=False) is None
    assert plugin._switch(engine, on=True) is None and engine.scheduler.dynamic_sd_lookup is None
    assert engine.asked == [{"reset_running_requests": True}]


def test_what_cannot_be_switched_says_why(plugin, on_cpu):
    """An engine without speculation, and one whose graphs were captured for one length, refuse."""
    assert "without speculation" in plugin._switch(core(tokens=0), on=False)
    on_cpu.cpu = False
    assert "num_speculative_tokens_per_batch_size" in plugin._switch(core(), on=False)


def test_a_call_that_is_refused_reaches_no_worker(plugin, on_cpu, tmp_path):
    """The wrapped call answers with the reason; other calls pass through unchanged."""
    reached = []
    call = plugin._collective_rpc(lambda *arguments: reached.append(arguments[1]) or [None])
    engine = core(tokens=0)
    assert "unsupported" in call(engine, plugin.SET_SPECULATION, None, (), {"on": "false"})[0]
    running = folder(tmp_path / "running")
    engine.vllm_config.model_config = SimpleNamespace(
        model=str(running), hf_config=SimpleNamespace(to_dict=lambda: {"num_hidden_layers": 2})
    )
    short = {"weights_path": str(folder(tmp_path / "short", layers=1))}
    assert "refused" in call(engine, plugin.RELOAD, None, (), short)[0]
    assert reached == []
    assert call(engine, plugin.RELOAD, None, (), {"weights_path": str(running)}) == [None]
    assert call(engine, "check_health") == [None]
    assert reached == [plugin.RELOAD, "check_health"]


def test_a_silent_proposer_proposes_nothing(plugin):
    """Lists stay as long as the batch and tensors as wide as zero; switched on again the proposer is asked."""
    drafter = SimpleNamespace(num_speculative_tokens=3, hone_silent=True)
    propose = plugin._silenced(drafter, lambda *_, **__: "proposed")
    assert propose(3, [[1], [], [2]], "counts", "ids") == [[], [], []]
    metadata = SimpleNamespace(batch_size=lambda: 2)
    empty = propose(num_speculative_tokens=0, common_attn_metadata=metadata, next_token_ids=torch.tensor([1, 2]))
    assert empty.shape == (2, 0) and empty.dtype == torch.int64
    drafter.hone_silent = False
    assert propose(3, [[1]]) == "proposed"
