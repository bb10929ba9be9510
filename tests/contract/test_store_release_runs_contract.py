"""The contract of ReleaseRuns in the store, on SQLite and on PostgreSQL."""

import pytest

from core.errors import Conflict, NotFound
from core.release_evidence import rule_of
from core.release_rule import open_trial
from core.release_run import ReleaseRun, RunStatus, Verdict
from store.store import Store
from tests.release_harness import plan


def run_of(identity: str, *, policy: str = "coder", at: float = 1.0, version: int = 1) -> ReleaseRun:
    trial = open_trial(rule_of(plan()))
    run = ReleaseRun(
        id=identity,
        policy=policy,
        version=version,
        baseline=0,
        plan=plan(),
        open_policy=policy,
        trial=trial,
        live=trial,
        started_at=at,
    )
    return run.decided(Verdict.STARTED, by="test")


async def test_one_open_run_of_a_policy(store: Store) -> None:
    """A second one is refused until the first is over; another Policy has its own."""
    async with store.transaction() as work:
        await work.release_runs.add(run_of("rrun_a"))
        await work.release_runs.add(run_of("rrun_b", policy="writer"))
    with pytest.raises(Conflict):
        async with store.transaction() as work:
            await work.release_runs.add(run_of("rrun_c"))
    async with store.transaction() as work:
        assert [one.id for one in await work.release_runs.list_open()] == ["rrun_a", "rrun_b"]
        run = await work.release_runs.get("rrun_a", lock=True)
        await work.release_runs.update(run.ended(RunStatus.REJECTED))
        await work.release_runs.add(run_of("rrun_c", at=2.0, version=2))
    async with store.reading() as work:
        assert [one.id for one in await work.release_runs.list("coder")] == ["rrun_c", "rrun_a"]
        assert (await work.release_runs.newest("coder")).id == "rrun_c"
        assert (await work.release_runs.newest("coder", 1)).status is RunStatus.REJECTED
        with pytest.raises(NotFound):
            await work.release_runs.newest("coder", 3)


async def test_only_the_newest_revision_is_changed(store: Store) -> None:
    """Of two writers that read the same run one wins; a run comes back as it was stored."""
    async with store.transaction() as work:
        await work.release_runs.add(run_of("rrun_a"))
        run = await work.release_runs.get("rrun_a")
        changed = await work.release_runs.update(run.model_copy(update={"waits": ("a",)}))
        assert (changed.revision, changed.waits) == (1, ("a",))
    with pytest.raises(Conflict):
        async with store.transaction() as work:
            await work.release_runs.update(run)
    async with store.reading() as work:
        assert await work.release_runs.get("rrun_a") == changed
        with pytest.raises(NotFound):
            await work.release_runs.get("rrun_x")
