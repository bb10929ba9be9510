"""VersionDesk: what administrators do to versions; each deed is one transaction with its audit record."""

import asyncio
import shutil
import time
from collections.abc import Sequence
from pathlib import Path

import structlog
from pydantic import BaseModel, ConfigDict

from core.access import ApiKey
from core.alias import FOLLOWING, Alias, alias_versions
from core.config.schema import HoneConfig
from core.errors import Conflict, HoneError, NotFound
from core.noun import now
from core.policy import Checkpoint, PolicyVersion
from core.retention import prunable
from core.version_note import VersionNote
from gateway.audit import audit_record
from serving.weights.folder import folder_checksum
from serving.weights.signing import signer_of, verifier_of
from store.events import POLICIES, VERSIONS
from store.store import Store
from store.unit_of_work import UnitOfWork

log = structlog.get_logger(__name__)

_OPEN_EXPERIMENT = "running"


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
        """Read the version's folder and compare. Raises NotFound."""
        async with self._store.reading() as work:
            version = await work.versions.get(policy, number)
            checkpoint = await work.checkpoints.for_version(policy, number)
        if version.files_removed_at is not None:
            return Verification(
                label=version.label, checksum_holds=False, signature="off", reason="its files were deleted"
            )
        return await asyncio.to_thread(self._verified, version.label, checkpoint)

    async def sign(self, key: ApiKey, policy: str, number: int) -> Checkpoint:
        """Sign a Checkpoint that was made while signing was off; its folder must match its checksum.

        Raises NotFound, and Conflict where signing is off or for a folder that does not match.
        """
        signer = signer_of(self._config)
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
        """Delete the folders of versions that nothing needs, or say which those are. Raises NotFound, StoreError."""
        keep = self._config.registry.keep_versions if keep is None else keep
        days = self._config.registry.keep_days if days is None else days
        older_than = time.time() - days * 86_400
        if dry_run:
            async with self._store.reading() as work:
                return await _prunable(work, policy, keep=keep, older_than=older_than)
        async with self._store.transaction() as work:
            # Marked first: from here on nobody names, promotes or loads them, and then the files go.
            gone = []
            for one in await _prunable(work, policy, keep=keep, older_than=older_than):
                fresh = await work.versions.get(policy, one.version, lock=True)
                if fresh.pinned or fresh.serving is not one.serving:
                    continue
                marked = fresh.model_copy(update={"files_removed_at": now()})
                await work.versions.update(marked)
                gone.append(marked)
            folders = [Path((await work.checkpoints.for_version(policy, one.version)).path) for one in gone]
            detail: dict[str, object] = {"versions": [one.version for one in gone], "keep": keep, "days": days}
            await work.audit.add(audit_record(key, "versions.prune", policy, detail))
        await asyncio.to_thread(_remove, folders)
        await self._store.events.publish(VERSIONS, {"policy": policy})
        return gone

    def _verified(self, label: str, checkpoint: Checkpoint) -> Verification:
        signature, reason = "off", None
        verifier = verifier_of(self._config)
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


async def _prunable(work: UnitOfWork, policy: str, *, keep: int, older_than: float) -> list[PolicyVersion]:
    named = (await aliases_of(work, policy)).values()
    running = [run.version for run in await work.release_runs.list_open() if run.policy == policy]
    experiments = await work.experiments.list(policy, _OPEN_EXPERIMENT)
    tried = [arm.version for experiment in experiments for arm in experiment.arms if arm.version is not None]
    return prunable(
        await work.policies.get(policy),
        await work.versions.list(policy),
        await work.releases.list(policy),
        keep=keep,
        older_than=older_than,
        needed={*named, *running, *tried},
    )


def _remove(folders: Sequence[Path]) -> None:
    for folder in folders:
        if not folder.is_dir():
            log.warning("checkpoint_elsewhere", folder=str(folder))
            continue
        # Out of its name first: nobody finds half a folder there.
        hidden = folder.with_name(f".{folder.name}.removed")
        folder.rename(hidden)
        shutil.rmtree(hidden)
        log.info("checkpoint_removed", folder=str(folder))
