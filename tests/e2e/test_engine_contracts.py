"""The engine contracts on a real vLLM: adapters on the standard engine, weights and speculation on the fast one."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from core.errors import AdapterRejected, EngineUnsupported
from core.policy import PolicyVersion
from hone.opened_store import opened_store
from serving.engines.vllm import VllmEngine
from tests.e2e.conftest import Stack
from tests.weight_contract import PROMPT, Controlled, WeightContract

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]


@pytest.fixture(scope="session")
def folders(stack: Stack, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path]:
    """The Base's folder, one of other weights with its shapes, and one that lacks a layer."""

    async def base_path() -> Path:
        async with opened_store(stack.config) as store, store.reading() as tx:
            return Path((await tx.bases.get(stack.base)).path)

    base = asyncio.run(base_path())
    other, wrong = tmp_path_factory.mktemp("other"), tmp_path_factory.mktemp("wrong")
    tensors = {name: tensor for file in base.glob("*.safetensors") for name, tensor in load_as_float32(file).items()}
    random = np.random.default_rng(0)
    changed = {
        name: tensor + 0.02 * tensor.std() * random.standard_normal(tensor.shape, np.float32)
        if tensor.ndim == 2
        else tensor
        for name, tensor in tensors.items()
    }
    save_file(changed, other / "model.safetensors")
    layers = [name for name in tensors if ".layers.0." in name]
    save_file({name: tensor for name, tensor in tensors.items() if name not in layers}, wrong / "model.safetensors")
    for folder in (other, wrong):
        (folder / "config.json").write_text((base / "config.json").read_text())
    return base, other, wrong


def load_as_float32(file: Path) -> dict[str, np.ndarray]:
    """The tensors of a file; numpy has no bfloat16, whose bits are the upper half of float32's."""
    try:
        return {name: tensor.astype(np.float32) for name, tensor in load_file(file).items()}
    except (KeyError, TypeError):
        raw = file.read_bytes()
        length = int.from_bytes(raw[:8], "little")
        found = {}
        for name, entry in json.loads(raw[8 : 8 + length]).items():
            if name != "__metadata__":
                start, end = (8 + length + offset for offset in entry["data_offsets"])
                upper = np.frombuffer(raw[start:end], np.uint16).astype(np.uint32) << 16
                found[name] = upper.view(np.float32).reshape(entry["shape"]).copy()
        return found


@pytest.fixture
async def fast(stack: Stack) -> AsyncIterator[VllmEngine]:
    """The engine of the fast Variant, which Hone started with vLLM's development routes."""
    engine = VllmEngine(stack.engines["fast"], request_seconds=120.0)
    yield engine
    await engine.close()


class TestVllmWeights(WeightContract):
    """A real vLLM replaces its weights while it runs, speculates and holds adapters."""

    @pytest.fixture
    async def controlled(
        self, stack: Stack, fast: VllmEngine, folders: tuple[Path, Path, Path]
    ) -> AsyncIterator[Controlled]:
        """The fast engine under the Base's weights."""
        base, other, wrong = folders
        yield Controlled(engine=fast, base=stack.base, weights=(base, other), wrong=wrong, long_tokens=48)


async def test_a_partial_folder_is_refused_before_anything_changes(
    stack: Stack, fast: VllmEngine, folders: tuple[Path, Path, Path]
) -> None:
    """vLLM alone would load it and die at the next request; with the plugin the engine answers on as before."""
    before = await fast.prompt_logprobs(stack.base, PROMPT)
    with pytest.raises(AdapterRejected, match="missing"):
        await fast.load_weights(str(folders[2]), label="coder@9")
    assert await fast.prompt_logprobs(stack.base, PROMPT) == pytest.approx(before, abs=1e-4)


async def test_speculation_is_switched_off_and_on_under_load(stack: Stack, fast: VllmEngine) -> None:
    """Off: drafts stop while tokens go on, with requests in flight; on: drafts go on. No request suffers."""
    text = [40, 41, 42, 43] * 12

    async def drafts() -> tuple[float, int]:
        before = (await fast.metrics()).drafts
        answers = await asyncio.gather(*(fast.generate(stack.base, text, max_tokens=24) for _ in range(3)))
        return (await fast.metrics()).drafts - before, min(len(answer.token_ids) for answer in answers)

    assert (await drafts())[0] > 0
    running = asyncio.create_task(fast.generate(stack.base, text, max_tokens=64))
    await asyncio.sleep(0.5)
    await fast.set_speculation(False)
    assert len((await running).token_ids) >= 1
    assert (await drafts())[0] == 0
    await fast.set_speculation(True)
    assert (await drafts())[0] > 0


async def test_a_standard_engine_has_no_development_routes(stack: Stack, trained: PolicyVersion) -> None:
    """They are powerful: they are open only where the fleet needs them."""
    engine = VllmEngine(stack.engines["standard"])
    with pytest.raises(EngineUnsupported):
        await engine.pause()
    assert len(await engine.models()) >= 1
    await engine.close()
