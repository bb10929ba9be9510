"""The engine plugin's LoRA functions equal a row-by-row computation, and rows without an adapter get none."""

import importlib.util
from importlib.metadata import distributions

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from serving.launch import ENGINE_PLUGIN

SLOTS, RANK, INPUT, OUTPUT = 3, 2, 5, 7


@pytest.fixture(scope="module")
def plugin():
    """The plugin's module, loaded from its folder as the engine does."""
    spec = importlib.util.spec_from_file_location("hone_engine_plugin", ENGINE_PLUGIN / "hone_engine_plugin.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


batches = st.lists(st.integers(-1, SLOTS - 1), min_size=1, max_size=9)


@settings(deadline=None)
@given(slots=batches, add=st.booleans(), stacked=st.booleans())
def test_a_batch_equals_its_rows(plugin, slots, add, stacked):
    """Whatever adapters share a batch, each row gets its own; -1 means none, never the last one."""
    torch.manual_seed(len(slots))
    down, up = torch.randn(SLOTS, RANK, INPUT), torch.randn(SLOTS, OUTPUT, RANK)
    inputs, start = torch.randn(len(slots), INPUT), torch.randn(len(slots), OUTPUT + 2)
    weights = [(tensor[:, None] if stacked else tensor) for tensor in (down, up)]
    low = torch.full((len(slots), RANK), 9.0)
    result = start.clone()
    plugin.shrink(inputs, weights[0], low, torch.tensor(slots), 0.5)
    plugin.expand_slice(low, weights[1], result, torch.tensor(slots), 1, OUTPUT, add)
    for row, slot in enumerate(slots):
        wanted = torch.zeros(OUTPUT) if slot < 0 else up[slot] @ (0.5 * down[slot] @ inputs[row])
        expected = start[row].clone()
        expected[1 : 1 + OUTPUT] = expected[1 : 1 + OUTPUT] + wanted if add else wanted
        torch.testing.assert_close(result[row], expected)


def test_prefill_explodes_sequences_into_rows(plugin):
    """A sequence's adapter holds for all of its tokens."""
    torch.manual_seed(0)
    down = torch.randn(SLOTS, RANK, INPUT)
    inputs, low = torch.randn(5, INPUT), torch.zeros(5, RANK)
    plugin._prefill_shrink(
        inputs, down, low, torch.tensor([0, 2]), torch.tensor([2, 3]), torch.tensor([-1, 1]), 2, 3, 5, 1.0
    )
    assert torch.equal(low[:2], torch.zeros(2, RANK))
    torch.testing.assert_close(low[2:], inputs[2:] @ down[1].T)


def test_the_plugin_is_found_as_an_entry_point():
    """A folder on the path is enough for vLLM to find it."""
    found = [
        entry.value
        for distribution in distributions(path=[str(ENGINE_PLUGIN)])
        for entry in distribution.entry_points
        if entry.group == "vllm.general_plugins"
    ]
    modules = ("hone_engine_plugin", "hone_engine_control", "hone_weight_spans", "hone_weight_digests")
    assert set(found) == {f"{module}:register" for module in modules}
    assert all((ENGINE_PLUGIN / f"{module}.py").is_file() for module in modules)
