"""Merges a LoRA version into the Base's weights: a version of full weights, with a Probe of its own.

The folder has the Base's files, tensor names and shapes, so that an engine can take it in the Base's place. The
product is made in float32; it stays so for engines that run in float32, and is rounded to the Base's dtype once for
others. The Probe is of the folder's weights, which are what engines load.
"""

import asyncio
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog
import torch
from peft import PeftModel
from safetensors import safe_open

from core.config.schema import HoneConfig
from core.errors import CorruptArtefact, InvalidRequest, NotFound, boundary
from core.ids import CHECKPOINT, RELEASE, new_id
from core.policy import Base, Checkpoint, PolicyVersion, Probe, Provenance
from core.release import Release
from learner.checkpoints import PROVENANCE_FILE, make_provenance, verify_folder
from learner.full_weights import load_model, score_sequences, write_full_folder
from learner.probe import MAX_TOKENS, PROMPTS, ProbeDraft, choose_probe
from learner.storage import new_folder
from serving.weights.folder import folder_checksum
from serving.weights.signing import signer_of
from store.events import VERSIONS
from store.store import Store
from store.taint import mark_withdrawn

log = structlog.get_logger(__name__)

_CANDIDATES = 2 * PROMPTS
_SEED = 0


@dataclass(frozen=True)
class MergeSource:
    """What is merged, and what the new version will follow."""

    base: Base
    checkpoint: Checkpoint
    """Of the LoRA version."""
    origin: PolicyVersion
    parent_path: Path
    """Weights of the version that the new one follows: the Base's folder for version 0."""
    parent_version: int
    episode_ids: tuple[str, ...]
    """Episodes that the LoRA version and its ancestors were trained on."""


async def merge_version(config: HoneConfig, store: Store, *, policy: str, version: int, into: str) -> PolicyVersion:
    """Mint the next version of Policy ``into`` from ``policy@version``; the fleet finds it wanted.

    Raises NotFound, InvalidRequest when the two do not go together, CorruptArtefact for a broken folder, LearnerError
    when the Base cannot be loaded, StoreFull or StoreError when the folder cannot be written.
    """
    signer = signer_of(config)
    source = await _source(store, policy, version, into)
    folder = config.data_dir.expanduser().absolute() / "checkpoints" / into
    checkpoint = await asyncio.to_thread(write_merged, source, folder, into, widen=config.engine.dtype == "float32")
    async with store.transaction() as work:
        minted = await work.versions.mint(
            into,
            kind="full",
            origin="imported" if source.origin.origin == "base" else source.origin.origin,
            parent_version=source.parent_version,
            checkpoint_id=checkpoint.id,
        )
        checkpoint = checkpoint.model_copy(update={"version": minted.version})
        await work.checkpoints.add(checkpoint if signer is None else signer.sign(checkpoint))
        await work.releases.add(Release(id=new_id(RELEASE), policy=into, version=minted.version))
        await work.lineage.add_many(checkpoint.id, source.episode_ids)
        await mark_withdrawn(work, into, [minted.version])
    await store.events.publish(VERSIONS, {"policy": into, "version": minted.version})
    log.info("merged", source=source.origin.label, version=minted.label, checkpoint=checkpoint.id)
    return minted


def write_merged(source: MergeSource, root: Path, into: str, *, widen: bool = False) -> Checkpoint:
    """Write the merged folder below ``root`` and score its Probe; the Checkpoint still lacks its version number.

    ``widen``: as ``write_full_folder`` has it.
    Blocking, and the model is in memory twice. Raises as ``merge_version``.
    """
    adapter = Path(source.checkpoint.path)
    verify_folder(adapter, source.checkpoint.checksum)
    base_path = Path(source.base.path)
    checkpoint_id = new_id(CHECKPOINT)
    path = root / checkpoint_id
    sequences = _sequences(source.checkpoint.probe, base_path)
    base_scores = score_sequences(load_model(base_path), sequences)
    parent_scores = base_scores
    if source.parent_path != base_path:
        parent_scores = score_sequences(load_model(source.parent_path), sequences)
    provenance = _provenance(source)
    with new_folder(path) as draft:
        merged = _merged(base_path, adapter)
        write_full_folder(merged, base_path, draft, widen=widen)
        del merged
        (draft / PROVENANCE_FILE).write_text(provenance.model_dump_json(indent=1))
    draft_probe = ProbeDraft(sequences=sequences, parent=parent_scores, base=base_scores)
    probe = choose_probe(draft_probe, score_sequences(load_model(path), sequences), dtype="float32")
    return Checkpoint(
        id=checkpoint_id,
        policy=into,
        version=0,
        kind="full",
        path=str(path),
        checksum=folder_checksum(path),
        base_fingerprint=source.base.fingerprint,
        probe=probe,
        provenance=provenance,
    )


async def _source(store: Store, policy: str, version: int, into: str) -> MergeSource:
    async with store.reading() as work:
        origin = await work.versions.get(policy, version)
        if origin.kind != "lora":
            raise InvalidRequest(f"'{origin.label}' is no LoRA version", hint="only LoRA versions are merged")
        lora = await work.policies.get(policy)
        try:
            target = await work.policies.get(into)
        except NotFound as error:
            raise InvalidRequest(
                f"there is no Policy '{into}'", hint=f"create it first: hone policies create {into}"
            ) from error
        if target.base != lora.base:
            raise InvalidRequest(f"'{into}' is trained on '{target.base}', '{policy}' on '{lora.base}'")
        base = await work.bases.get(target.base)
        parent_path, parent_version = Path(base.path), 0
        if target.promoted_version:
            parent = await work.versions.get(into, target.promoted_version)
            if parent.kind == "full":
                parent_version = parent.version
                parent_path = Path((await work.checkpoints.for_version(into, parent.version)).path)
        checkpoint = await work.checkpoints.for_version(policy, version)
        episodes: dict[str, None] = {}
        ancestor: int | None = version
        while ancestor:
            found = await work.checkpoints.for_version(policy, ancestor)
            episodes |= dict.fromkeys(found.provenance.episode_ids)
            ancestor = (await work.versions.get(policy, ancestor)).parent_version
    return MergeSource(base, checkpoint, origin, parent_path, parent_version, tuple(episodes))


def _provenance(source: MergeSource) -> Provenance:
    return make_provenance(
        parent_version=source.parent_version,
        config={"merged": source.origin.label, "checkpoint": source.checkpoint.id},
        seed=_SEED,
        step=source.checkpoint.provenance.step,
        episode_ids=source.episode_ids,
        metrics={},
    )


def _sequences(probe: Probe, base_path: Path) -> tuple[tuple[int, ...], ...]:
    """The adapter's own probe sequences, where it differs most from its Base, and random ones beside them."""
    chosen = dict.fromkeys(prompt.token_ids for prompt in probe.prompts)
    vocabulary = _vocabulary(base_path)
    generator = random.Random(_SEED)
    while len(chosen) < _CANDIDATES:
        chosen.setdefault(tuple(generator.randrange(vocabulary) for _ in range(MAX_TOKENS)))
    return tuple(chosen)


def _vocabulary(base_path: Path) -> int:
    for file in sorted(base_path.glob("*.safetensors")):
        with safe_open(file, framework="pt") as opened:
            for name in opened.keys():  # noqa: SIM118 - no mapping
                if name.endswith("embed_tokens.weight"):
                    return int(opened.get_slice(name).get_shape()[0])
    raise CorruptArtefact(f"{base_path} has no token embedding")


def _merged(base_path: Path, adapter: Path) -> dict[str, torch.Tensor]:
    base = load_model(base_path)
    with boundary(CorruptArtefact, f"merging the adapter in {adapter}"):
        whole: Any = PeftModel.from_pretrained(base, str(adapter)).merge_and_unload(safe_merge=True)
    state: dict[str, torch.Tensor] = whole.state_dict()
    return state
