"""Which checkpoint folders of a Policy go, by rule: what no traffic, release, pin or run needs any more.

Versions, Checkpoints and lineage stay in the store; only the folder is gone, and an engine that is asked for such a
version refuses it.
"""

import asyncio
import math
import time
from collections.abc import Collection, Iterable
from pathlib import Path

import structlog

from core.noun import now
from learner.storage import remove_drafts, remove_folder
from store.events import VERSIONS
from store.prunable_versions import prunable_versions
from store.store import Store

log = structlog.get_logger(__name__)

ORPHAN_SECONDS = 86_400.0
"""Age of a folder without a version, or of a draft, that no other learner can still be at work on."""


async def remove_superseded(store: Store, policy: str, root: Path, *, keep: int, needed: Collection[int]) -> int:
    """Remove folders below ``root`` that ``core.retention.prunable`` lets go; how many went.

    The newest ``keep`` versions stay, 0: all, and those of ``needed``. A version is marked before its folder goes:
    from then on nobody pins, names or promotes it.
    """
    if not keep:
        return 0
    folders: list[Path] = []
    async with store.transaction() as work:
        for one in await prunable_versions(work, policy, keep=keep, older_than=math.inf, needed=needed, lock=True):
            folder = root / str(one.checkpoint_id)
            fresh = await work.versions.get(policy, one.version, lock=True)
            # One without a folder here has it on another machine, whose files are not this learner's to judge.
            if fresh.pinned or fresh.serving is not one.serving or not folder.is_dir():
                continue
            await work.versions.update(fresh.model_copy(update={"files_removed_at": now()}))
            folders.append(folder)
    removed = await asyncio.to_thread(_removed, folders)
    if removed:
        await store.events.publish(VERSIONS, {"policy": policy})
    return removed


async def remove_orphans(store: Store, policy: str, root: Path, *, older_than_seconds: float = ORPHAN_SECONDS) -> int:
    """Remove old folders below ``root`` that no version names: their learner died before it published them."""
    async with store.reading() as work:
        named = {version.checkpoint_id for version in await work.versions.list(policy)}
    return await asyncio.to_thread(_without, root, named, older_than_seconds)


def _without(root: Path, named: Collection[str | None], older_than_seconds: float) -> int:
    remove_drafts(root, older_than_seconds=older_than_seconds)
    newest = time.time() - older_than_seconds
    folders = [path for path in root.glob("[!.]*") if path.name not in named and path.is_dir()]
    return _removed(path for path in folders if path.stat().st_mtime <= newest)


def _removed(folders: Iterable[Path]) -> int:
    number = 0
    for folder in folders:
        if folder.is_dir():
            remove_folder(folder)
            log.info("checkpoint_removed", folder=str(folder))
            number += 1
    return number
