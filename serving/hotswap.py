"""Hot-swap of one LoRA version on one engine replica: check the folder, load, probe; and unload.

Every version has a name and a folder of its own, never reloaded in place: vLLM keys its prefix cache by both,
and requests on the old name go on undisturbed.
"""

import asyncio
import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import structlog

from core.deployment import LoadedVersion
from core.errors import AdapterRejected, CorruptArtefact, HoneError, ProbeFailed, StoreError, boundary
from core.policy import Base, Checkpoint, PolicyVersion
from serving.engines.base import Engine
from serving.probe import check_probe
from serving.weights.adapter import check_adapter
from serving.weights.folder import folder_checksum
from serving.weights.signing import Verifier

log = structlog.get_logger(__name__)

_PASSING = frozenset(
    {
        errno.ENOSPC,
        errno.EDQUOT,
        errno.EIO,
        errno.EMFILE,
        errno.ENFILE,
        errno.ENOMEM,
        errno.ESTALE,
        errno.ETIMEDOUT,
        errno.EAGAIN,
    }
)
"""Faults of a disk, or of this process, that may be over in a moment."""
DEFINITE = (AdapterRejected, ProbeFailed, CorruptArtefact)
"""Errors that say something about the version; others are about the engine or the moment: try again."""


def engine_model_name(version: PolicyVersion, checkpoint: Checkpoint) -> str:
    """The immutable name under which engines know a version: ``coder.v17-1a2b3c4d``."""
    return f"{version.policy}.v{version.version}-{checkpoint.checksum[:8]}"


def check_artefact(checkpoint: Checkpoint, *, base: Base, max_rank: int, verifier: Verifier | None = None) -> None:
    """Whether the Checkpoint's folder is whole, unchanged and made for ``base``. Blocking: reads every byte.

    Raises CorruptArtefact or AdapterRejected; StoreError, which says nothing about the version, when the disk or
    this process has no room or is at fault for the moment.
    """
    if checkpoint.kind != "lora":
        raise AdapterRejected("full weights cannot be loaded beside others; only LoRA versions are hot-swapped")
    with whole_artefact(checkpoint, base=base, verifier=verifier) as path:
        check_adapter(path, base_path=Path(base.path), max_rank=max_rank)


@contextmanager
def whole_artefact(checkpoint: Checkpoint, *, base: Base, verifier: Verifier | None = None) -> Iterator[Path]:
    """The Checkpoint's folder, whole, unchanged and made for ``base``, to look into it. Blocking: reads every byte.

    Raises AdapterRejected for another Base and, with a ``verifier``, for a signature that does not hold; inside it
    as ``reading_artefact`` does.
    """
    if verifier is not None:
        verifier.check(checkpoint)
    if checkpoint.base_fingerprint != base.fingerprint:
        raise AdapterRejected(
            f"it was trained on another Base (fingerprint {checkpoint.base_fingerprint[:8]}, "
            f"'{base.name}' has {base.fingerprint[:8]})"
        )
    path = Path(checkpoint.path)
    with reading_artefact(path):
        found = folder_checksum(path)
        if found != checkpoint.checksum:
            raise CorruptArtefact(f"{path} has checksum {found[:8]}, recorded was {checkpoint.checksum[:8]}")
        yield path


@contextmanager
def reading_artefact(path: Path) -> Iterator[None]:
    """Whatever goes wrong inside is CorruptArtefact: the version is refused, never the fleet ended.

    StoreError where the disk or this process has no room or is at fault for the moment: that says nothing about the
    version.
    """
    try:
        with boundary(CorruptArtefact, f"checking {path}"):
            yield
    except CorruptArtefact as error:
        cause = error.__cause__
        if isinstance(cause, OSError) and cause.errno in _PASSING:
            raise StoreError(f"{path} cannot be read at the moment: {cause.strerror}") from error
        raise


async def swap_in(
    engine: Engine, version: PolicyVersion, checkpoint: Checkpoint, *, max_error: float, decided_at: float
) -> LoadedVersion:
    """Load a checked version on one replica and probe it; what it replaces is not touched.

    ``decided_at``: the event loop's time of the decision, from which ``swap_seconds`` counts. Raises
    AdapterRejected or ProbeFailed, after which the engine no longer holds the version, or EngineError.
    """
    name = engine_model_name(version, checkpoint)
    # An engine that outlived its fleet may hold the name already; the probe says whether rightly.
    if name not in await engine.models():
        await engine.load_adapter(name, checkpoint.path)
    result = await check_probe(engine, name, checkpoint.probe, max_error)
    if not result.passed:
        await swap_out(engine, name)
        raise ProbeFailed(f"'{name}' on {engine.url} failed its probe: {result.reason}")
    return LoadedVersion(
        policy=version.policy,
        version=version.version,
        engine_model=name,
        checksum=checkpoint.checksum,
        swap_seconds=asyncio.get_running_loop().time() - decided_at,
        probe=result,
    )


async def swap_out(engine: Engine, name: str) -> None:
    """Unload ``name``; an engine that does not answer is asked again when the fleet compares names."""
    try:
        await engine.unload_adapter(name)
    except HoneError as error:
        log.warning("unload_failed", engine=engine.url, engine_model=name, error=error.message)
