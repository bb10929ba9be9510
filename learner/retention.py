"""Which checkpoint folders of a Policy go, by rule: what no traffic, release, pin or run needs any more.

Versions, Checkpoints and lineage stay in the store; only the folder is gone, and an engine that is asked for such a
version refuses it.
"""

import asyncio
import time
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

import structlog

from core.policy import Policy, PolicyVersion, ServingStatus
from core.release import Release, ReleaseStatus
from learner.storage import remove_drafts, remove_folder
from store.store import Store

log = structlog.get_logger(__name__)

ORPHAN_SECONDS = 86_400.0
"""Age of a folder without a version, or of a draft, that no other learner can still be at work on."""

_GONE = frozenset({ServingStatus.UNLOADED, ServingStatus.REFUSED})
_UNDER_WAY = frozenset(
    {ReleaseStatus.EVALUATED, ReleaseStatus.SHADOWING, ReleaseStatus.RAMPING, ReleaseStatus.PROMOTED}
)


def superseded(
    policy: Policy,
    versions: Sequence[PolicyVersion],
    releases: Iterable[Release],
    *,
    keep: int,
    needed: Collection[int],
) -> list[PolicyVersion]:
    """Versions whose folders may go. Pure.

    The newest ``keep`` stay, and those of ``needed``; so do the promoted one and the one before it, what is pinned,
    what an engine holds or shall hold, and what is on its way to traffic. ``keep`` 0: all stay.
    """
    stored = sorted((one for one in versions if one.checkpoint_id), key=lambda one: -one.version)
    under_way = {release.version for release in releases if release.status in _UNDER_WAY}
    staying = {policy.promoted_version, policy.previous_version, *needed, *under_way}
    older = stored[keep:] if keep else []
    return [one for one in older if one.version not in staying and not one.pinned and one.serving in _GONE]


async def remove_superseded(store: Store, policy: str, root: Path, *, keep: int, needed: Collection[int]) -> int:
    """Remove what ``superseded`` names below ``root``; how many folders went."""
    if not keep:
        return 0
    async with store.reading() as work:
        named = [alias.version for alias in await work.aliases.list(policy)]
        found = superseded(
            await work.policies.get(policy),
            await work.versions.list(policy),
            await work.releases.list(policy),
            keep=keep,
            needed=[*needed, *named],
        )
    folders = [root / one.checkpoint_id for one in found if one.checkpoint_id]
    return await asyncio.to_thread(_removed, folders)


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
