"""Small Bases and adapters on disk, versions of them in a store, and fake engines that serve them."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from core.ids import CHECKPOINT, RELEASE, new_id
from core.policy import Base, Checkpoint, Policy, PolicyVersion, Probe, Provenance
from core.release import Release
from serving.engines.fake_model import adapter_identity, base_identity, probe_for
from serving.weights.adapter import base_shapes
from serving.weights.folder import base_fingerprint, folder_checksum
from store.events import VERSIONS
from store.store import Store

BASE = "base"
POLICY = "coder"
HIDDEN = 8


def write_base(path: Path) -> Base:
    """A Base of two tiny layers: right for checks, not for serving."""
    path.mkdir(parents=True)
    tensors = {"model.embed_tokens.weight": np.zeros((16, HIDDEN), dtype=np.float32)}
    for layer in range(2):
        prefix = f"model.layers.{layer}.self_attn"
        tensors[f"{prefix}.q_proj.weight"] = np.zeros((HIDDEN, HIDDEN), dtype=np.float32)
        tensors[f"{prefix}.v_proj.weight"] = np.zeros((HIDDEN // 2, HIDDEN), dtype=np.float32)
    save_file(tensors, path / "model.safetensors")
    (path / "config.json").write_text(json.dumps({"model_type": "llama", "hidden_size": HIDDEN}))
    (path / "tokenizer.json").write_text("{}")
    return Base(name=BASE, path=str(path), fingerprint=base_fingerprint(path))


def write_adapter(
    path: Path,
    base_path: Path,
    *,
    seed: int = 0,
    rank: int = 4,
    scale: float = 0.02,
    change: Mapping[str, Any] | None = None,
) -> Path:
    """A PEFT folder with random matrices for all query and value projections of the Base; ``change``: its config."""
    random = np.random.default_rng(seed)
    tensors = {}
    for module, shape in base_shapes(base_path).items():
        if module.endswith((".q_proj", ".v_proj")):
            a = random.normal(0, scale, (rank, shape[1])).astype(np.float32)
            b = random.normal(0, scale, (shape[0], rank)).astype(np.float32)
            tensors[f"base_model.model.{module}.lora_A.weight"] = a
            tensors[f"base_model.model.{module}.lora_B.weight"] = b
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": rank,
        "lora_alpha": 2 * rank,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": ["q_proj", "v_proj"],
    }
    path.mkdir(parents=True)
    save_file(tensors, path / "adapter_model.safetensors")
    (path / "adapter_config.json").write_text(json.dumps({**config, **(change or {})}))
    return path


def probe_of(path: Path, parent: Path | None = None) -> Probe:
    """The Probe of an adapter as a fake engine answers it."""
    base = base_identity(BASE)
    parent_identity = base if parent is None else adapter_identity(parent)
    return probe_for(version=adapter_identity(path), parent=parent_identity, base=base)


def checkpoint_of(
    path: Path, base: Base, version: int, probe: Probe | None = None, policy: str = POLICY
) -> Checkpoint:
    """The Checkpoint of an adapter folder."""
    return Checkpoint(
        id=new_id(CHECKPOINT),
        policy=policy,
        version=version,
        kind="lora",
        path=str(path),
        checksum=folder_checksum(path),
        base_fingerprint=base.fingerprint,
        lora_rank=4,
        probe=probe or probe_of(path),
        provenance=Provenance(parent_version=0, code_commit="none", config={}, packages={}, seed=0, step=version),
    )


class Publisher:
    """Publishes versions of one Policy as a learner does."""

    def __init__(self, store: Store, base: Base, folder: Path) -> None:
        self._store = store
        self._base = base
        self._folder = folder

    async def start(self) -> None:
        """Register the Base and the Policy."""
        async with self._store.transaction() as unit:
            await unit.bases.put(self._base)
            await unit.policies.add(Policy(name=POLICY, base=self._base.name))

    async def publish(self, *, pinned: bool = False, probe: Probe | None = None) -> PolicyVersion:
        """A new version with an adapter of its own, wanted and with a Release."""
        async with self._store.transaction() as unit:
            version = await unit.versions.mint(POLICY, kind="lora", origin="grpo", pins=("test",) * pinned)
            path = self.path(version.version)
            write_adapter(path, Path(self._base.path), seed=version.version)
            checkpoint = checkpoint_of(path, self._base, version.version, probe)
            await unit.checkpoints.add(checkpoint)
            await unit.releases.add(Release(id=new_id(RELEASE), policy=POLICY, version=version.version))
        await self._store.events.publish(VERSIONS)
        return version

    def path(self, version: int) -> Path:
        """The folder of a version."""
        return self._folder / f"{POLICY}-{version}"

    async def version(self, number: int) -> PolicyVersion:
        """A version as stored."""
        async with self._store.reading() as unit:
            return await unit.versions.get(POLICY, number)
