"""Imports a LoRA adapter (PEFT layout) or a full model (Hugging Face layout) as the next version of a Policy.

The Probe is scored here, on token sequences that need no data: random ones, of which those are kept on which the
imported weights differ most from the parent's and the Base's.
"""

import asyncio
import json
import random
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import structlog
from peft import PeftModel

from core.config.schema import HoneConfig
from core.errors import CorruptArtefact, InvalidRequest, boundary
from core.ids import CHECKPOINT, RELEASE, new_id
from core.policy import Base, Checkpoint, PolicyVersion, Provenance
from core.release import Release
from learner.checkpoints import PROVENANCE_FILE, make_provenance
from learner.full_weights import load_model, score_sequences
from learner.probe import CANDIDATES, MAX_TOKENS, ProbeDraft, choose_probe
from learner.storage import new_folder
from serving.weights.adapter import check_adapter
from serving.weights.folder import folder_checksum
from serving.weights.full_folder import check_full_folder
from serving.weights.signing import signer_of
from store.events import VERSIONS
from store.store import Store
from store.taint import checkpoints_behind, mark_withdrawn
from store.unit_of_work import UnitOfWork

log = structlog.get_logger(__name__)

ADAPTER_FILES = ("adapter_config.json", "adapter_model.safetensors")
_SEED = 0


@dataclass(frozen=True)
class ImportSource:
    """What is imported, and onto what."""

    folder: Path
    kind: Literal["lora", "full"]
    base: Base
    policy: str
    max_rank: int
    engine_dtype: str | None = None
    """What engines run in."""
    episode_ids: tuple[str, ...] = ()
    """What is known to have been trained on, by these weights or those that they come from."""


async def import_version(config: HoneConfig, store: Store, *, folder: Path, policy: str) -> PolicyVersion:
    """Mint the next version of ``policy`` from ``folder``; the fleet finds it wanted, its Release is a candidate.

    Raises NotFound for the Policy, InvalidRequest for a folder of neither layout, AdapterRejected for one made for
    another Base, CorruptArtefact for broken files, LearnerError, StoreFull and StoreError.
    """
    signer = signer_of(config)
    kind = folder_kind(folder)
    checksum = await asyncio.to_thread(folder_checksum, folder)
    async with store.reading() as work:
        base = await work.bases.get((await work.policies.get(policy)).base)
        seen = await _line_of(work, checksum)
    source = ImportSource(folder, kind, base, policy, config.engine.max_lora_rank, config.engine.dtype, seen)
    root = config.data_dir.expanduser().absolute() / "checkpoints" / policy
    checkpoint = await asyncio.to_thread(write_imported, source, root)
    async with store.transaction() as work:
        minted = await work.versions.mint(
            policy, kind=source.kind, origin="imported", parent_version=0, checkpoint_id=checkpoint.id
        )
        checkpoint = checkpoint.model_copy(update={"version": minted.version})
        await work.checkpoints.add(checkpoint if signer is None else signer.sign(checkpoint))
        await work.releases.add(Release(id=new_id(RELEASE), policy=policy, version=minted.version))
        if checkpoint.provenance.episode_ids:
            await work.lineage.add_many(checkpoint.id, checkpoint.provenance.episode_ids)
            await mark_withdrawn(work, policy, [minted.version])
    await store.events.publish(VERSIONS, {"policy": policy, "version": minted.version})
    log.info("version_imported", version=minted.label, kind=source.kind, checkpoint=checkpoint.id)
    return minted


def folder_kind(folder: Path) -> Literal["lora", "full"]:
    """What a folder holds; raises InvalidRequest."""
    if all((folder / name).is_file() for name in ADAPTER_FILES):
        return "lora"
    if (folder / "config.json").is_file() and any(folder.glob("*.safetensors")):
        return "full"
    raise InvalidRequest(
        f"{folder} is neither a LoRA adapter nor a model",
        hint=f"it needs {' and '.join(ADAPTER_FILES)}, or config.json and *.safetensors",
    )


def write_imported(source: ImportSource, root: Path) -> Checkpoint:
    """Check and copy the folder below ``root`` and score its Probe; the Checkpoint still lacks its version number.

    Blocking. Raises as ``import_version``.
    """
    base_path = Path(source.base.path)
    if source.kind == "lora":
        check_adapter(source.folder, base_path=base_path, max_rank=source.max_rank)
    else:
        check_full_folder(source.folder, base_path=base_path, engine_dtype=source.engine_dtype)
    model = load_model(base_path)
    sequences = _sequences(model)
    base_scores = score_sequences(model, sequences)
    scores = score_sequences(_imported(source, model), sequences)
    checkpoint_id = new_id(CHECKPOINT)
    provenance = make_provenance(
        parent_version=0,
        config={"imported": str(source.folder.absolute()), "checksum": folder_checksum(source.folder)},
        seed=_SEED,
        step=0,
        episode_ids=tuple(sorted({*source.episode_ids, *_episodes_seen(source.folder)})),
        metrics={},
    )
    path = root / checkpoint_id
    with new_folder(path) as draft:
        draft.mkdir(parents=True, exist_ok=True)
        for file in sorted(source.folder.iterdir()):
            if file.is_file() and file.suffix in (".json", ".safetensors", ".txt", ".model", ".jinja"):
                shutil.copyfile(file, draft / file.name)
        (draft / PROVENANCE_FILE).write_text(provenance.model_dump_json(indent=1))
    return Checkpoint(
        id=checkpoint_id,
        policy=source.policy,
        version=0,
        kind=source.kind,
        path=str(path),
        checksum=folder_checksum(path),
        base_fingerprint=source.base.fingerprint,
        lora_rank=_rank(source.folder) if source.kind == "lora" else None,
        probe=choose_probe(
            ProbeDraft(sequences=sequences, parent=base_scores, base=base_scores), scores, dtype="float32"
        ),
        provenance=provenance,
    )


async def _line_of(work: UnitOfWork, checksum: str) -> tuple[str, ...]:
    """Episodes that an exported version and its ancestors saw, where it was exported from this store unchanged."""
    exported = await work.checkpoints.with_checksum(checksum)
    if exported is None:
        return ()
    versions = {one.version: one for one in await work.versions.list(exported.policy)}
    found: set[str] = set(exported.provenance.episode_ids)
    for checkpoint_id in checkpoints_behind(versions, exported.version):
        found |= set(await work.lineage.episodes_of(checkpoint_id))
    return tuple(sorted(found))


def _episodes_seen(folder: Path) -> tuple[str, ...]:
    """Episodes in the provenance that an exported version brings along: what it saw, it saw wherever it lies.

    Raises CorruptArtefact for a file that is there and cannot be read.
    """
    file = folder / PROVENANCE_FILE
    if not file.is_file():
        return ()
    with boundary(CorruptArtefact, f"reading {file}"):
        return Provenance.model_validate_json(file.read_text()).episode_ids


def _imported(source: ImportSource, base: Any) -> Any:
    if source.kind == "full":
        return load_model(source.folder)
    with boundary(CorruptArtefact, f"loading the adapter in {source.folder}"):
        merged: Any = PeftModel.from_pretrained(base, str(source.folder)).merge_and_unload(safe_merge=True)
        return merged.eval()


def _rank(folder: Path) -> int:
    return int(json.loads((folder / "adapter_config.json").read_text())["r"])


def _sequences(model: Any) -> tuple[tuple[int, ...], ...]:
    vocabulary = int(model.get_input_embeddings().weight.shape[0])
    generator = random.Random(_SEED)
    found: dict[tuple[int, ...], None] = {}
    while len(found) < CANDIDATES:
        found.setdefault(tuple(generator.randrange(vocabulary) for _ in range(MAX_TOKENS)))
    return tuple(found)
