"""Checkpoint folders go by rule, and what was never published goes too."""

import asyncio
import os
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from core.config.schema import HoneConfig
from core.policy import Base, Policy, PolicyVersion, ServingStatus
from core.release import Release, ReleaseStatus
from learner.retention import remove_orphans, remove_superseded, superseded
from store.migrate import upgrade
from store.store import Store

POLICY = "coder"
GONE = ServingStatus.UNLOADED


def _version(number: int, serving: ServingStatus = GONE, pins: tuple[str, ...] = ()) -> PolicyVersion:
    return PolicyVersion(
        policy=POLICY,
        version=number,
        kind="lora",
        origin="grpo",
        checkpoint_id=f"ckpt_{number}",
        serving=serving,
        pins=pins,
    )


def _names(versions: list[PolicyVersion], *, keep: int = 1, needed: tuple[int, ...] = ()) -> list[int]:
    policy = Policy(name=POLICY, base="tiny", promoted_version=2, previous_version=1)
    releases = [
        Release(id="rel_3", policy=POLICY, version=3, status=ReleaseStatus.RAMPING),
        Release(id="rel_4", policy=POLICY, version=4, status=ReleaseStatus.REJECTED),
    ]
    return [one.version for one in superseded(policy, versions, releases, keep=keep, needed=needed)]


def test_only_what_nobody_needs_goes() -> None:
    """Promoted, previous, ramping, pinned, loaded, needed and newest versions stay; the others go."""
    versions = [_version(number) for number in range(1, 8)]
    versions += [_version(8, pins=("operator",)), _version(9, ServingStatus.LIVE), _version(10)]
    assert _names(versions) == [7, 6, 5, 4]
    assert _names(versions, keep=5) == [5, 4]
    assert _names(versions, needed=(7, 4)) == [6, 5]
    assert _names(versions, keep=0) == []


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    """A migrated SQLite store with a Policy."""
    config = HoneConfig.model_validate({"data_dir": tmp_path / "data"})
    config.data_dir.mkdir(parents=True)
    await asyncio.to_thread(upgrade, config.database_url)
    opened = await Store.open(config)
    async with opened.transaction() as work:
        await work.bases.put(Base(name="tiny", path="/nowhere", fingerprint="0" * 64))
        await work.policies.add(Policy(name=POLICY, base="tiny"))
    yield opened
    await opened.close()


def _folder(root: Path, name: str, *, age: float = 0.0) -> Path:
    (root / name).mkdir(parents=True)
    (root / name / "weights").write_text("x")
    os.utime(root / name, (time.time() - age, time.time() - age))
    return root / name


async def test_folders_go_and_records_stay(store, tmp_path) -> None:
    """Old unloaded versions lose their folder once; nothing else is touched, and without a rule nothing goes."""
    root = tmp_path / "checkpoints"
    async with store.transaction() as work:
        for number in (1, 2, 3):
            minted = await work.versions.mint(POLICY, kind="lora", origin="grpo", checkpoint_id=f"ckpt_{number}")
            serving = ServingStatus.LIVE if number == 2 else GONE
            await work.versions.update(minted.model_copy(update={"serving": serving}))
    for number in (1, 2, 3):
        _folder(root, f"ckpt_{number}")
    assert await remove_superseded(store, POLICY, root, keep=0, needed=()) == 0
    assert await remove_superseded(store, POLICY, root, keep=1, needed=()) == 1
    assert await remove_superseded(store, POLICY, root, keep=1, needed=()) == 0
    assert sorted(path.name for path in root.iterdir()) == ["ckpt_2", "ckpt_3"]
    async with store.reading() as work:
        assert len(await work.versions.list(POLICY)) == 3


async def test_what_was_never_published_goes_when_it_is_old(store, tmp_path) -> None:
    """Folders and drafts of learners that died go after a day; those that somebody may be writing stay."""
    root = tmp_path / "checkpoints"
    async with store.transaction() as work:
        await work.versions.mint(POLICY, kind="lora", origin="grpo", checkpoint_id="ckpt_named")
    for name, age in (("ckpt_named", 1e6), ("ckpt_old", 1e6), (".ckpt_x.draft-tmp_1", 1e6), ("ckpt_new", 10.0)):
        _folder(root, name, age=age)
    assert await remove_orphans(store, POLICY, root) == 1
    assert sorted(path.name for path in root.iterdir()) == ["ckpt_named", "ckpt_new"]
    assert await remove_orphans(store, "unknown", tmp_path / "absent") == 0
