"""Full-weight folders, versions of them in a store, and what a fake engine answers with them."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from core.ids import CHECKPOINT, RELEASE, new_id
from core.policy import Base, Checkpoint, Policy, PolicyVersion, Probe, Provenance
from core.release import Release
from serving.engines.fake_model import base_identity, probe_for, weights_identity
from serving.weights.folder import base_fingerprint, folder_checksum
from serving.weights.wire import FullWeights
from store.events import POLICIES, VERSIONS
from store.store import Store

BASE = "base"
POLICY = "coder"
HIDDEN = 8
VOCABULARY = 64
LAYERS = 2
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "dtype": "float32",
    "tie_word_embeddings": True,
}


def write_model(path: Path, *, seed: int = 0, config: Mapping[str, Any] | None = None) -> Path:
    """A tiny Llama's folder with random weights: right for checks and fake engines, not for serving."""
    random = np.random.default_rng(seed)
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (VOCABULARY, HIDDEN)}
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}"
        shapes |= {
            f"{prefix}.self_attn.q_proj.weight": (HIDDEN, HIDDEN),
            f"{prefix}.self_attn.k_proj.weight": (HIDDEN // 2, HIDDEN),
            f"{prefix}.self_attn.v_proj.weight": (HIDDEN // 2, HIDDEN),
            f"{prefix}.self_attn.o_proj.weight": (HIDDEN, HIDDEN),
            f"{prefix}.mlp.gate_proj.weight": (2 * HIDDEN, HIDDEN),
            f"{prefix}.mlp.up_proj.weight": (2 * HIDDEN, HIDDEN),
            f"{prefix}.mlp.down_proj.weight": (HIDDEN, 2 * HIDDEN),
            f"{prefix}.input_layernorm.weight": (HIDDEN,),
        }
    shapes["model.norm.weight"] = (HIDDEN,)
    path.mkdir(parents=True)
    tensors = {name: random.normal(0, 0.1, shape).astype(np.float32) for name, shape in shapes.items()}
    save_file(tensors, path / "model.safetensors")
    (path / "config.json").write_text(json.dumps({**CONFIG, **(config or {})}))
    (path / "tokenizer.json").write_text("{}")
    return path


def full_base(path: Path, **options: Any) -> Base:
    """A Base of such a folder."""
    write_model(path, **options)
    return Base(name=BASE, path=str(path), fingerprint=base_fingerprint(path))


def full_probe(path: Path) -> Probe:
    """The Probe of a folder as a fake engine answers it; its parent is the Base."""
    base = base_identity(BASE)
    return probe_for(version=weights_identity(path), parent=base, base=base)


def full_checkpoint(path: Path, base: Base, version: int, probe: Probe | None = None) -> Checkpoint:
    """The Checkpoint of a full-weight folder."""
    return Checkpoint(
        id=new_id(CHECKPOINT),
        policy=POLICY,
        version=version,
        kind="full",
        path=str(path),
        checksum=folder_checksum(path),
        base_fingerprint=base.fingerprint,
        probe=probe or full_probe(path),
        provenance=Provenance(parent_version=0, code_commit="none", config={}, packages={}, seed=0, step=version),
    )


def weights_of(path: Path, version: int, probe: Probe | None = None) -> FullWeights:
    """A version as a hot-swap takes it; version 0 has no Probe."""
    wanted = None if version == 0 else probe or full_probe(path)
    return FullWeights(policy=POLICY, version=version, path=str(path), checksum=folder_checksum(path), probe=wanted)


class FullPublisher:
    """Publishes full-weight versions of one Policy, and moves its traffic as the release desk does."""

    def __init__(self, store: Store, base: Base, folder: Path) -> None:
        self._store = store
        self.base = base
        self._folder = folder

    async def start(self) -> None:
        """Register the Base, and the Policy unless it is there."""
        async with self._store.transaction() as unit:
            await unit.bases.put(self.base)
            if not any(policy.name == POLICY for policy in await unit.policies.list()):
                await unit.policies.add(Policy(name=POLICY, base=self.base.name))

    async def publish(self, *, probe: Probe | None = None, **options: Any) -> PolicyVersion:
        """A new version with a folder of its own, wanted and with a Release."""
        async with self._store.transaction() as unit:
            version = await unit.versions.mint(POLICY, kind="full", origin="sft", parent_version=0)
            path = write_model(self.path(version.version), seed=version.version, **options)
            await unit.checkpoints.add(full_checkpoint(path, self.base, version.version, probe))
            await unit.releases.add(Release(id=new_id(RELEASE), policy=POLICY, version=version.version))
        await self._store.events.publish(VERSIONS)
        return version

    async def promote(self, version: int) -> None:
        """Give the Policy's name to a version."""
        async with self._store.transaction() as unit:
            policy = await unit.policies.get(POLICY)
            fields = {"promoted_version": version, "previous_version": policy.promoted_version}
            await unit.policies.update(policy.model_copy(update=fields))
        await self._store.events.publish(POLICIES)

    def path(self, version: int) -> Path:
        """The folder of a version."""
        return self._folder / f"{POLICY}-{version}"

    async def version(self, number: int) -> PolicyVersion:
        """A version as stored."""
        async with self._store.reading() as unit:
            return await unit.versions.get(POLICY, number)

    async def policy(self) -> Policy:
        """The Policy as stored."""
        async with self._store.reading() as unit:
            return await unit.policies.get(POLICY)
