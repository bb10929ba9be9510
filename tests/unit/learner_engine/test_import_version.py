"""Import and export of versions in PEFT and Hugging Face layout: what comes back is what was given."""

import asyncio
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from core.config.learner import LoraSection
from core.errors import AdapterRejected, CorruptArtefact, InvalidRequest
from core.policy import Base, Policy, Provenance
from hone.processes.import_version import bring_in
from hone.version_export import export_now
from learner.checkpoints import PROVENANCE_FILE
from learner.policy_model import build_policy_model
from serving.full_reconciler import check_full_artefact
from serving.hotswap import check_artefact
from serving.weights.folder import base_fingerprint
from serving.weights.signing import verifier_of
from store.store import Store
from tests.tiny_model import build_tiny_base


@pytest.fixture
def config(make_config, fresh_sqlite_url):
    """Signing on, on the test's own database."""
    return make_config({"store.url": fresh_sqlite_url, "registry.signing": True})


@pytest.fixture
async def base(config, open_store, fresh_sqlite_url, tmp_path) -> tuple[Store, Base]:
    """A tiny Base with a Policy."""
    store = await open_store(fresh_sqlite_url)
    path = build_tiny_base(tmp_path / "base")
    base = Base(name="base", path=str(path), fingerprint=base_fingerprint(path))
    async with store.transaction() as work:
        await work.bases.put(base)
        await work.policies.add(Policy(name="coder", base="base"))
    return store, base


def adapter_of(base: Base, folder: Path) -> Path:
    """An adapter that changes what the Base says."""
    model = build_policy_model(
        Path(base.path), lora=LoraSection(rank=4), adapter=None, device=torch.device("cpu"), seed=3
    )
    generator = torch.Generator().manual_seed(5)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            parameter.data = 0.3 * torch.randn(parameter.shape, generator=generator)
    model.export_adapter(folder)
    return folder


async def test_an_adapter_goes_in_and_out(base, config, tmp_path) -> None:
    """The imported version is a signed candidate with a Probe that tells it from the Base, and exports unchanged."""
    store, its_base = base
    adapter = adapter_of(its_base, tmp_path / "adapter")
    version = await bring_in(config, adapter, "coder")
    assert (version.label, version.kind, version.origin) == ("coder@1", "lora", "imported")
    async with store.reading() as work:
        checkpoint = await work.checkpoints.for_version("coder", 1)
        assert (await work.releases.get("coder", 1)).status == "candidate"
        assert [one.action for one in await work.audit.list()] == ["version.import"]
    check_artefact(checkpoint, base=its_base, max_rank=8, verifier=verifier_of(config))
    distance = [
        abs(mine - theirs)
        for prompt in checkpoint.probe.prompts
        for mine, theirs in zip(prompt.version_logprobs, prompt.base_logprobs, strict=True)
    ]
    assert sum(distance) / len(distance) > 0.1
    out = tmp_path / "out"
    await asyncio.to_thread(export_now, config, "coder", 1, out)
    given, got = (load_file(folder / "adapter_model.safetensors") for folder in (adapter, out))
    assert given.keys() == got.keys()
    assert all(torch.equal(given[name], got[name]) for name in given)
    with pytest.raises(InvalidRequest, match="exists already"):
        await asyncio.to_thread(export_now, config, "coder", 1, out)
    again = await bring_in(config, out, "coder")
    assert again.version == 2


async def test_an_exported_version_keeps_what_it_and_its_ancestors_saw(base, config, tmp_path) -> None:
    """Imported again, its lineage names the whole line's Episodes; from another store, those its folder names."""
    store, its_base = base
    await bring_in(config, adapter_of(its_base, tmp_path / "adapter"), "coder")
    async with store.transaction() as work:
        first = await work.checkpoints.for_version("coder", 1)
        await work.lineage.add_many(first.id, ["ep_one", "ep_two"])
    out = tmp_path / "out"
    await asyncio.to_thread(export_now, config, "coder", 1, out)
    await bring_in(config, out, "coder")
    file = out / PROVENANCE_FILE
    said = Provenance.model_validate_json(file.read_text())
    file.write_text(said.model_copy(update={"episode_ids": ("ep_elsewhere",)}).model_dump_json())
    await bring_in(config, out, "coder")
    async with store.reading() as work:
        seen = []
        for number in (2, 3):
            checkpoint = await work.checkpoints.for_version("coder", number)
            seen.append(await work.lineage.episodes_of(checkpoint.id))
    assert seen == [["ep_one", "ep_two"], ["ep_elsewhere"]]


async def test_a_full_model_goes_in(base, config, tmp_path) -> None:
    """A model of the Base's form becomes a version of full weights."""
    store, its_base = base
    folder = build_tiny_base(tmp_path / "other")
    weights = load_file(folder / "model.safetensors")
    changed = {name: tensor * 1.1 for name, tensor in weights.items()}
    save_file(changed, folder / "model.safetensors", metadata={"format": "pt"})
    version = await bring_in(config, folder, "coder")
    assert version.kind == "full"
    async with store.reading() as work:
        checkpoint = await work.checkpoints.for_version("coder", 1)
    check_full_artefact(checkpoint, base=its_base, verifier=verifier_of(config))


async def test_what_does_not_fit_is_refused(base, config, tmp_path) -> None:
    """Neither an empty folder, nor a broken adapter, nor one of another shape becomes a version."""
    store, its_base = base
    (tmp_path / "empty").mkdir()
    with pytest.raises(InvalidRequest, match="neither"):
        await bring_in(config, tmp_path / "empty", "coder")
    broken = adapter_of(its_base, tmp_path / "broken")
    (broken / "adapter_model.safetensors").write_bytes(b"?" * 64)
    with pytest.raises((CorruptArtefact, AdapterRejected)):
        await bring_in(config, broken, "coder")
    other = build_tiny_base(tmp_path / "larger", vocabulary_size=256)
    with pytest.raises(AdapterRejected):
        await bring_in(config, other, "coder")
    async with store.reading() as work:
        assert await work.versions.list("coder") == []
