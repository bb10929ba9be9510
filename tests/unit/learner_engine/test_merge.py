"""Merging a LoRA version into full weights: the folder, its Probe, and where it came from."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from core.config.learner import LoraSection
from core.errors import InvalidRequest
from core.ids import CHECKPOINT, RELEASE, new_id
from core.policy import Base, Checkpoint, Policy, PolicyVersion, ServingStatus
from core.release import Release
from learner.checkpoints import make_provenance
from learner.merge import merge_version
from learner.policy_model import build_policy_model
from serving.engines.fake_model import probe_for
from serving.full_reconciler import check_full_artefact
from serving.weights.folder import base_fingerprint, folder_checksum
from store.store import Store
from tests.tiny_model import build_tiny_base


async def _lora_version(store: Store, folder: Path) -> tuple[Base, Path, PolicyVersion]:
    """A Base, a trained-looking adapter of it, and its version in the store."""
    path = build_tiny_base(folder / "base")
    base = Base(name="base", path=str(path), fingerprint=base_fingerprint(path))
    model = build_policy_model(path, lora=LoraSection(rank=4), adapter=None, device=torch.device("cpu"), seed=3)
    generator = torch.Generator().manual_seed(5)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            parameter.data = 0.3 * torch.randn(parameter.shape, generator=generator)
    adapter = folder / "adapter"
    model.export_adapter(adapter)
    async with store.transaction() as work:
        await work.bases.put(base)
        for name in ("coder", "coder-full"):
            await work.policies.add(Policy(name=name, base="base"))
        version = await work.versions.mint("coder", kind="lora", origin="grpo", parent_version=0)
        provenance = make_provenance(
            parent_version=0, config={}, seed=1, step=4, episode_ids=("ep_1", "ep_2"), metrics={}
        )
        await work.checkpoints.add(
            Checkpoint(
                id=new_id(CHECKPOINT),
                policy="coder",
                version=version.version,
                kind="lora",
                path=str(adapter),
                checksum=folder_checksum(adapter),
                base_fingerprint=base.fingerprint,
                lora_rank=4,
                probe=_probe(),
                provenance=provenance,
            )
        )
        await work.releases.add(Release(id=new_id(RELEASE), policy="coder", version=version.version))
    return base, adapter, version


def _probe():  # type: ignore[no-untyped-def]
    fake = probe_for(version="v", parent="p", base="b")
    prompts = tuple(
        one.model_copy(update={"token_ids": tuple((7 * number + index) % 120 for index in range(12))})
        for number, one in enumerate(fake.prompts)
    )
    return fake.model_copy(update={"prompts": prompts})


async def test_a_merged_version_answers_as_its_adapter_does(tmp_path, fresh_sqlite_url, open_store, make_config):
    """The new version's folder has the Base's form and the adapter's log-probs, and its Probe tells it apart."""
    store = await open_store(fresh_sqlite_url)
    base, adapter, version = await _lora_version(store, tmp_path)
    minted = await merge_version(make_config(), store, policy="coder", version=version.version, into="coder-full")
    assert (minted.kind, minted.origin, minted.serving) == ("full", "grpo", ServingStatus.WANTED)
    async with store.reading() as work:
        checkpoint = await work.checkpoints.for_version("coder-full", minted.version)
        assert await work.lineage.episodes_of(checkpoint.id) == ["ep_1", "ep_2"]
        assert (await work.releases.get("coder-full", minted.version)).status == "candidate"
    assert checkpoint.provenance.config["merged"] == "coder@1"
    check_full_artefact(checkpoint, base=base)

    before, after = (load_file(Path(path) / "model.safetensors") for path in (base.path, checkpoint.path))
    assert before.keys() == after.keys()
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed and all("_proj" in name for name in changed)

    lora = build_policy_model(
        Path(base.path), lora=LoraSection(rank=4), adapter=adapter, device=torch.device("cpu"), seed=0
    )
    whole = AutoModelForCausalLM.from_pretrained(checkpoint.path, dtype=torch.float32)
    tokens = torch.tensor([[5, 9, 17, 33, 65]])
    with torch.no_grad():
        torch.testing.assert_close(whole(tokens).logits, lora.network(tokens).logits, atol=1e-4, rtol=1e-4)
        logprobs = torch.log_softmax(whole(torch.tensor([checkpoint.probe.prompts[0].token_ids])).logits[0], -1)
    prompt = checkpoint.probe.prompts[0]
    for position, value in zip(prompt.positions, prompt.version_logprobs, strict=True):
        assert logprobs[position - 1, prompt.token_ids[position]].item() == pytest.approx(value, abs=1e-4)
    assert max(abs(a - b) for a, b in zip(prompt.version_logprobs, prompt.base_logprobs, strict=True)) > 0.05


async def test_what_cannot_be_merged_is_refused(tmp_path, fresh_sqlite_url, open_store, make_config):
    """Version 0, a full version and a Policy that does not exist are named in the error."""
    store = await open_store(fresh_sqlite_url)
    await _lora_version(store, tmp_path)
    for version, into, reason in ((0, "coder-full", "no LoRA version"), (1, "nobody", "there is no Policy 'nobody'")):
        with pytest.raises(InvalidRequest, match=reason):
            await merge_version(make_config(), store, policy="coder", version=version, into=into)
