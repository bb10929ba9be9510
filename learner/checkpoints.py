"""Checkpoint folders for serving, and resume states for going on exactly where a run stopped.

A checkpoint folder holds the adapter or all weights, and ``provenance.json``, is written once and never changed. A
resume state holds DeepSpeed's weights, optimizer state and learning-rate schedule, and every rank's random
generators, with ``resume.json``; only the newest few of a run are kept.

Both kinds of folder appear under their names when they are on disk as a whole, and vanish from them before anything
in them is removed, so that a learner killed at any moment leaves drafts, and no half folder.
"""

import base64
import importlib.metadata
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import structlog
import torch
from pydantic import ValidationError

from core.errors import ConfigurationError, CorruptArtefact
from core.ids import CHECKPOINT, new_id
from core.live import LiveState
from core.noun import Noun
from core.policy import Probe, Provenance
from learner.storage import new_folder, remove_drafts, remove_folder
from learner.trainer import Trainer
from serving.weights.folder import folder_checksum

log = structlog.get_logger(__name__)

PROVENANCE_FILE = "provenance.json"
RESUME_FILE = "resume.json"
_ENGINE_FOLDER = "engine"
_PACKAGES = ("hone", "torch", "transformers", "peft", "deepspeed", "numpy")


@dataclass(frozen=True)
class WrittenCheckpoint:
    """A checkpoint folder that no version points at yet."""

    id: str
    path: Path
    checksum: str
    lora_rank: int | None
    provenance: Provenance
    probe: Probe
    resume_path: Path | None = None
    kind: Literal["lora", "full"] = "lora"


def write_checkpoint(trainer: Trainer, root: Path, *, provenance: Provenance, probe: Probe) -> WrittenCheckpoint:
    """Export what is trained into a new folder below ``root``; nothing is left of it on StoreFull or StoreError."""
    checkpoint_id = new_id(CHECKPOINT)
    path = root / checkpoint_id
    with new_folder(path) as draft:
        trainer.export_adapter(draft)
        (draft / PROVENANCE_FILE).write_text(provenance.model_dump_json(indent=1))
    return WrittenCheckpoint(
        id=checkpoint_id,
        path=path,
        checksum=folder_checksum(path),
        lora_rank=trainer.lora_rank,
        provenance=provenance,
        probe=probe,
        kind="full" if trainer.lora_rank is None else "lora",
    )


def verify_folder(path: Path, checksum: str) -> None:
    """Raise CorruptArtefact unless the folder's checksum is ``checksum``."""
    found = folder_checksum(path)
    if found != checksum:
        raise CorruptArtefact(
            f"{path} does not match its checksum: recorded {checksum[:12]}…, found {found[:12]}…",
            hint="restore the folder from a backup, or continue from another version",
        )


class ResumeState(Noun):
    """Where a run stands, beside DeepSpeed's own files."""

    run_id: str
    step: int
    """Optimizer steps done; for SFT also the position in the data, a function of seed and step."""
    checksum: str = ""
    """Of the engine's files."""
    random_state: str
    """torch's generator, base64."""
    layout: str = ""
    """What was trained, and how it was spread over ranks; empty in states that do not say."""
    probe_draft: dict[str, Any] | None = None
    """The next Probe's draft, which cannot be made again once the parent's weights are gone."""
    data_state: dict[str, Any] | None = None
    """Where the choice of Tasks stands (``learner.data_state``)."""


class ResumeStates:
    """The resume states of one run, in ``folder``."""

    def __init__(self, folder: Path, *, keep: int) -> None:
        self.folder = folder
        self._keep = keep

    def save(
        self,
        trainer: Trainer,
        *,
        run_id: str,
        step: int,
        probe_draft: dict[str, Any] | None = None,
        data_state: dict[str, Any] | None = None,
    ) -> Path:
        """Write the state after ``step``, replacing one of the same step. Raises StoreFull or StoreError."""
        target = self._path(step)
        remove_folder(target)
        with new_folder(target) as draft:
            trainer.save_state(draft / _ENGINE_FOLDER)
            state = ResumeState(
                run_id=run_id,
                step=step,
                checksum=folder_checksum(draft / _ENGINE_FOLDER),
                layout=trainer.layout,
                random_state=base64.b64encode(torch.get_rng_state().numpy().tobytes()).decode(),
                probe_draft=probe_draft,
                data_state=data_state,
            )
            (draft / RESUME_FILE).write_text(state.model_dump_json())
        return target

    def newest(self, *, up_to_step: int) -> ResumeState | None:
        """The newest state at or before ``up_to_step``; later ones belong to a step that was never recorded."""
        steps = [step for step in self._steps() if step <= up_to_step]
        if not steps:
            return None
        path = self._path(steps[-1]) / RESUME_FILE
        try:
            return ResumeState.model_validate_json(path.read_bytes())
        except (OSError, ValidationError) as error:
            raise CorruptArtefact(f"{path} cannot be read: {error}") from error

    def restore(self, trainer: Trainer, state: ResumeState) -> None:
        """Put weights, optimizer and random generator back into a fresh Trainer.

        Raises ConfigurationError when the state was made in another layout, CorruptArtefact for broken files.
        """
        if state.layout and state.layout != trainer.layout:
            raise ConfigurationError(
                f"run {state.run_id} stands at step {state.step} with {state.layout}, and this learner has "
                f"{trainer.layout}",
                hint="start the learner as it was, or begin a new run from the newest version",
            )
        folder = self._path(state.step) / _ENGINE_FOLDER
        verify_folder(folder, state.checksum)
        trainer.load_state(folder)
        raw = bytearray(base64.b64decode(state.random_state))
        torch.set_rng_state(torch.frombuffer(raw, dtype=torch.uint8).clone())

    def sweep(self) -> None:
        """Remove the drafts of a learner that was killed; call it before anything is saved."""
        remove_drafts(self.folder)

    def prune(self) -> None:
        """Remove all but the newest states; call it once the newest step is recorded."""
        for step in self._steps()[: -self._keep]:
            remove_folder(self._path(step))
            log.debug("resume_state_removed", step=step)

    def _path(self, step: int) -> Path:
        return self.folder / f"step-{step:06d}"

    def _steps(self) -> list[int]:
        return sorted(int(path.name.removeprefix("step-")) for path in self.folder.glob("step-*"))


def package_versions() -> dict[str, str]:
    """Versions of what decides the result of training."""
    versions = {}
    for name in _PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = "not installed"
    return versions


def code_commit(project: Path) -> str:
    """The commit that ``project`` is checked out at, or the installed version where there is no checkout."""
    git = project / ".git"
    try:
        head = (git / "HEAD").read_text().strip()
        if not head.startswith("ref: "):
            return head
        name = head.removeprefix("ref: ")
        loose = git / name
        if loose.exists():
            return loose.read_text().strip()
        packed = (git / "packed-refs").read_text().splitlines()
        return next(line.split()[0] for line in packed if line.endswith(f" {name}"))
    except (OSError, StopIteration):
        return f"package {package_versions()['hone']}"


def make_provenance(
    *,
    parent_version: int,
    config: Mapping[str, Any],
    seed: int,
    step: int,
    episode_ids: tuple[str, ...],
    metrics: Mapping[str, float],
    live: LiveState | None = None,
) -> Provenance:
    """How the Checkpoint after ``step`` came to be, with this installation's code and packages."""
    return Provenance(
        parent_version=parent_version,
        code_commit=code_commit(Path(__file__).parents[1]),
        config=dict(config),
        packages=package_versions(),
        seed=seed,
        step=step,
        episode_ids=episode_ids,
        metrics=dict(metrics),
        live=live,
    )
