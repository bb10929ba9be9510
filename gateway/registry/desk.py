"""VersionDesk: what administrators do to versions; each deed is one transaction with its audit record."""

import asyncio
import shutil
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import structlog
from pydantic import BaseModel, ConfigDict

from core.access import ApiKey
from core.alias import FOLLOWING, Alias, alias_versions
from core.config.schema import HoneConfig
from core.errors import ConfigurationError, Conflict, HoneError, NotFound
from core.noun import now
from core.policy import Checkpoint, PolicyVersion
from core.version_note import VersionNote
from gateway.audit import audit_record
from serving.weights.folder import folder_checksum
from serving.weights.signing import Signer, Verifier, signer_of, verifier_of
from store.events import POLICIES, VERSIONS
from store.prunable_versions import prunable_versions
from store.store import Store
from store.unit_of_work import UnitOfWork

log = structlog.get_logger(__name__)


class Verification(BaseModel):
    """Whether a version's files are what was recorded."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    label: str
    checksum_holds: bool
    signature: str
    """`good`, `bad`, `missing` or `off`."""
    reason: str | None = None
    """What is wrong."""


class VersionDesk:
    """Aliases, notes, signatures and retention."""

    def __init__(self, *, config: HoneConfig, store: Store) -> None:
        self._config = config
        self._store = store
        self._keys: tuple[Signer | None, Verifier | None] | None = None
        self._reading_keys = threading.Lock()

    async def set_alias(self, key: ApiKey, alias: Alias) -> Alias:
        """Point an alias at a version. Raises NotFound; Conflict for a version whose files are gone."""
        async with self._store.transaction() as work:
            version = await work.versions.get(alias.policy, alias.version)
            if version.files_removed_at is not None:
                raise Conflict(f"the files of '{version.label}' were deleted")
            await work.aliases.put(alias)
            detail = {"alias": alias.name, "version": alias.version}
            await work.audit.add(audit_record(key, "alias.set", alias.policy, detail))
        await self._store.events.publish(POLICIES, {"policy": alias.policy})
        return alias

    async def drop_alias(self, key: ApiKey, policy: str, name: str) -> None:
        """Remove an alias. Raises NotFound, and Conflict for one that follows promotions."""
        if name in FOLLOWING:
            raise Conflict(f"'{name}' follows promotions and rollbacks")
        async with self._store.transaction() as work:
            await work.aliases.delete(policy, name)
            await work.audit.add(audit_record(key, "alias.delete", policy, {"alias": name}))
        await self._store.events.publish(POLICIES, {"policy": policy})

    async def add_note(self, key: ApiKey, policy: str, number: int, text: str) -> PolicyVersion:
        """Add a remark. Raises NotFound; version 0 is the Base and takes none."""
        async with self._store.transaction() as work:
            version = await _minted(work, policy, number)
            noted = version.model_copy(update={"notes": (*version.notes, VersionNote(text=text, by=key.id))})
            await work.versions.update(noted)
            await work.audit.add(audit_record(key, "version.note", noted.label, {"text": text}))
        return noted

    async def verify(self, policy: str, number: int) -> Verification:
        """Read the version's folder and compare. Raises NotFound; Conflict for a signing key that is none."""
        async with self._store.reading() as work:
            version = await work.versions.get(policy, number)
            checkpoint = await work.checkpoints.for_version(policy, number)
        if version.files_removed_at is not None:
            return Verification(
                label=version.label, checksum_holds=False, signature="off", reason="its files were deleted"
            )
        _, verifier = await asyncio.to_thread(self._signing)
        return await asyncio.to_thread(_verified, version.label, checkpoint, verifier)

    async def sign(self, key: ApiKey, policy: str, number: int) -> Checkpoint:
        """Sign a Checkpoint that was made while signing was off; its folder must match its checksum.

        Raises NotFound, and Conflict where signing is off or its key is none, or for a folder that does not match.
        """
        signer, _ = await asyncio.to_thread(self._signing)
        if signer is None:
            raise Conflict("registry.signing is off", hint="turn it on and start the gateway again")
        async with self._store.reading() as work:
            checkpoint = await work.checkpoints.for_version(policy, number)
        found = await asyncio.to_thread(folder_checksum, Path(checkpoint.path))
        if found != checkpoint.checksum:
            raise Conflict(f"the folder of '{policy}@{number}' does not match its checksum: it is not signed")
        signed = signer.sign(checkpoint)
        async with self._store.transaction() as work:
            await work.checkpoints.update(signed)
            detail: dict[str, object] = {"checksum": checkpoint.checksum, "signed_by": signed.signed_by}
            await work.audit.add(audit_record(key, "version.sign", f"{policy}@{number}", detail))
        return signed

    async def prune(
        self, key: ApiKey, policy: str, *, keep: int | None, days: float | None, dry_run: bool
    ) -> list[PolicyVersion]:
        """Delete the folders of versions that nothing needs, or say which those are; those that went.

        A version whose folder is not on this machine stays as it is, and so does one whose folder cannot be removed.
        Raises NotFound and StoreError.
        """
        keep = self._config.registry.keep_versions if keep is None else keep
        days = self._config.registry.keep_days if days is None else days
        older_than = time.time() - days * 86_400
        if dry_run:
            async with self._store.reading() as work:
                return await prunable_versions(work, policy, keep=keep, older_than=older_than)
        async with self._store.transaction() as work:
            # Marked first: from here on nobody names, promotes or loads them, and then the files go.
            gone: dict[Path, PolicyVersion] = {}
            for one in await prunable_versions(work, policy, keep=keep, older_than=older_than, lock=True):
                fresh = await work.versions.get(policy, one.version, lock=True)
                if fresh.pinned or fresh.serving is not one.serving:
                    continue
                folder = Path((await work.checkpoints.for_version(policy, one.version)).path)
                if not await asyncio.to_thread(folder.is_dir):
                    log.warning("checkpoint_elsewhere", folder=str(folder))
                    continue
                gone[folder] = fresh.model_copy(update={"files_removed_at": now()})
                await work.versions.update(gone[folder])
            numbers = [one.version for one in gone.values()]
            detail: dict[str, object] = {"versions": numbers, "keep": keep, "days": days}
            await work.audit.add(audit_record(key, "versions.prune", policy, detail))
        kept = await asyncio.to_thread(_remove, list(gone))
        if kept:
            async with self._store.transaction() as work:
                for folder in kept:
                    fresh = await work.versions.get(policy, gone.pop(folder).version, lock=True)
                    await work.versions.update(fresh.model_copy(update={"files_removed_at": None}))
        await self._store.events.publish(VERSIONS, {"policy": policy})
        return list(gone.values())

    def _signing(self) -> tuple[Signer | None, Verifier | None]:
        """Both of one key, read once: whoever comes meanwhile waits. Raises Conflict for a key that is none."""
        with self._reading_keys:
            if self._keys is None:
                try:
                    self._keys = signer_of(self._config), verifier_of(self._config)
                except ConfigurationError as error:
                    raise Conflict(f"the signing key cannot be used: {error.message}", hint=error.hint) from error
            return self._keys


def _verified(label: str, checkpoint: Checkpoint, verifier: Verifier | None) -> Verification:
    signature, reason = "off", None
    if verifier is not None:
        signature = "good"
        try:
            verifier.check(checkpoint)
        except HoneError as error:
            signature, reason = "missing" if checkpoint.signature is None else "bad", error.message
    try:
        found = folder_checksum(Path(checkpoint.path))
    except HoneError as error:
        return Verification(label=label, checksum_holds=False, signature=signature, reason=error.message)
    holds = found == checkpoint.checksum
    if not holds:
        reason = f"the folder has checksum {found[:12]}, recorded was {checkpoint.checksum[:12]}"
    return Verification(label=label, checksum_holds=holds, signature=signature, reason=reason)


async def aliases_of(work: UnitOfWork, policy: str) -> dict[str, int]:
    """Alias → version. Raises NotFound."""
    found = await work.policies.get(policy)
    return alias_versions(found, await work.aliases.list(policy), await work.releases.list(policy))


async def _minted(work: UnitOfWork, policy: str, number: int) -> PolicyVersion:
    if number == 0:
        raise NotFound(f"'{policy}@0' is the Base: it has no record of its own")
    return await work.versions.get(policy, number, lock=True)


def _remove(folders: Sequence[Path]) -> list[Path]:
    """Those that could not be removed, and are as they were."""
    kept = []
    for folder in folders:
        # Out of its name first: nobody finds half a folder there.
        hidden = folder.with_name(f".{folder.name}.removed")
        try:
            folder.rename(hidden)
        except OSError as error:
            log.error("checkpoint_not_removed", folder=str(folder), error=str(error))
            kept.append(folder)
            continue
        try:
            shutil.rmtree(hidden)
        except OSError as error:
            log.error("checkpoint_left_over", folder=str(hidden), error=str(error))
        log.info("checkpoint_removed", folder=str(folder))
    return kept
