"""Exports a version's files: a verified copy that appears under its name as a whole."""

import asyncio
import shutil
from pathlib import Path

from core.config.schema import HoneConfig
from core.errors import CorruptArtefact, InvalidRequest, StoreError
from hone.local_audit import local_record
from hone.opened_store import opened_store
from serving.weights.folder import folder_checksum
from serving.weights.signing import verifier_of


def export_now(config: HoneConfig, policy: str, number: int, folder: Path) -> None:
    """Copy ``policy@number`` to ``folder``.

    Raises NotFound, InvalidRequest for a folder that is there, CorruptArtefact for files that do not match their
    checksum, AdapterRejected for a bad signature where signing is on, and StoreError.
    """
    asyncio.run(_export(config, policy, number, folder.expanduser().absolute()))


async def _export(config: HoneConfig, policy: str, number: int, folder: Path) -> None:
    verifier = verifier_of(config)
    async with opened_store(config) as store:
        async with store.reading() as work:
            checkpoint = await work.checkpoints.for_version(policy, number)
        if verifier is not None:
            verifier.check(checkpoint)
        await asyncio.to_thread(_copy, Path(checkpoint.path), folder, checkpoint.checksum)
        async with store.transaction() as work:
            detail = {"folder": str(folder), "checksum": checkpoint.checksum}
            await work.audit.add(local_record("version.export", f"{policy}@{number}", detail))


def _copy(source: Path, folder: Path, checksum: str) -> None:
    if folder.exists():
        raise InvalidRequest(f"{folder} exists already", hint="name a folder that is not there yet")
    draft = folder.with_name(f".{folder.name}.draft")
    try:
        shutil.rmtree(draft, ignore_errors=True)
        shutil.copytree(source, draft)
        if folder_checksum(draft) != checksum:
            raise CorruptArtefact(f"{source} does not match its checksum: nothing was exported")
        draft.rename(folder)
    except OSError as error:
        raise StoreError(f"{folder} cannot be written: {error}") from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)
