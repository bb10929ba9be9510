"""Checkpoint folders go by rule, and what was never published goes too."""

import asyncio
import os
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from core.config.schema import HoneConfig
from core.errors import Conflict
from core.experiment import Arm, Experiment
from core.policy import Base, Policy, ServingStatus
from core.release import ReleaseStep
from core.release_evidence import rule_of
from core.release_rule import open_trial
from core.release_run import ReleaseRun
from core.run import RunStatus, StepMetrics, TrainingRun
from learner.retention import remove_orphans, remove_superseded
from store.held_versions import pin
from store.migrate import upgrade
from store.store import Store
from tests.release_harness import plan

POLICY = "coder"
GONE = ServingStatus.UNLOADED


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
        assert [one.version for one in await work.versions.list(POLICY) if one.files_removed_at is not None] == [1]
    with pytest.raises(Conflict, match="deleted"):
        await pin(store, POLICY, 1, "operator")


async def test_what_is_compared_or_released_keeps_its_folder(store, tmp_path) -> None:
    """Versions of an open release and of a running Experiment stay, and so does what the learner itself needs."""
    root, trial = tmp_path / "checkpoints", open_trial(rule_of(plan()))
    async with store.transaction() as work:
        for number in range(1, 6):
            minted = await work.versions.mint(POLICY, kind="lora", origin="grpo", checkpoint_id=f"ckpt_{number}")
            await work.versions.update(minted.model_copy(update={"serving": GONE}))
            _folder(root, f"ckpt_{number}")
        run = ReleaseRun(
            id="run_1",
            policy=POLICY,
            version=1,
            baseline=0,
            plan=plan(),
            open_policy=POLICY,
            trial=trial,
            live=trial,
            step=ReleaseStep.EVALUATION,
        )
        await work.release_runs.add(run)
        arms = (Arm(name="promoted", version=0, share=0.5), Arm(name="candidate", version=2, share=0.5))
        await work.experiments.add(Experiment(id="exp_1", policy=POLICY, kind="ab", arms=arms, salt="s"))
    assert await remove_superseded(store, POLICY, root, keep=1, needed=(3,)) == 1
    assert sorted(path.name for path in root.iterdir()) == ["ckpt_1", "ckpt_2", "ckpt_3", "ckpt_5"]


async def test_what_a_run_or_a_job_works_on_keeps_its_folder(store, tmp_path) -> None:
    """Start and newest version of an unfinished run stay, and what open jobs name; those of ended ones go."""
    root = tmp_path / "checkpoints"
    async with store.transaction() as work:
        for number in range(1, 8):
            minted = await work.versions.mint(POLICY, kind="lora", origin="grpo", checkpoint_id=f"ckpt_{number}")
            await work.versions.update(minted.model_copy(update={"serving": GONE}))
            _folder(root, f"ckpt_{number}")
        for name, start, status in (("run_1", 1, RunStatus.RUNNING), ("run_2", 2, RunStatus.FINISHED)):
            step = StepMetrics(step=1, version=start + 2, loss=0.0, gradient_norm=0.0)
            await work.runs.put(
                TrainingRun(
                    id=name,
                    policy=POLICY,
                    algorithm="grpo",
                    start_version=start,
                    domains=("d",),
                    planned_steps=2,
                    seed=0,
                    status=status,
                    steps=(step,),
                )
            )
    await store.queue.enqueue("train", {"policy": POLICY, "start_version": 5})
    await store.queue.enqueue("evaluate", {"policy": "another", "version": 6, "baseline_version": 2})
    assert await remove_superseded(store, POLICY, root, keep=1, needed=()) == 3
    assert sorted(path.name for path in root.iterdir()) == ["ckpt_1", "ckpt_3", "ckpt_5", "ckpt_7"]


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
