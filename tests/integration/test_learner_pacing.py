"""GRPO runs that sample ahead: the pace, the Tasks of an interrupted run, and alarms that end one."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from core.config.schema import HoneConfig
from core.errors import Diverged
from core.job import JobStatus
from core.policy import Base
from core.run import RunStatus
from learner.main import Learner
from learner.trainer import Trainer
from serving.weights.folder import folder_checksum
from store.events import VERSIONS
from store.store import Store
from tests.learner_harness import (
    POLICY,
    StubWorker,
    payload,
    run_job,
    seeded_store,
    small_config,
    stub_fleet,
    tiny_base,
)

pytestmark = pytest.mark.timeout(240)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Base:
    """The tiny model as a Base."""
    return tiny_base(tmp_path_factory.mktemp("base"))


@pytest.fixture
def config(tmp_path: Path) -> HoneConfig:
    """Two groups of three per step, small adapters."""
    return small_config(tmp_path)


@pytest.fixture
async def store(config: HoneConfig, base: Base) -> AsyncIterator[Store]:
    """A store with Tasks to train on."""
    async with seeded_store(config, base) as opened:
        yield opened


async def test_batches_sampled_ahead_are_paced_and_never_too_stale(store, config, base) -> None:
    """With a bound of two versions, two steps are sampled ahead, nothing is refused as stale, and staleness shows."""
    done = await run_job(
        store,
        config,
        payload("grpo", steps=5, overrides={"max_staleness": 2}),
        StubWorker(store, base).run(),
        stub_fleet(store),
    )
    assert done.status is JobStatus.DONE, done.error
    async with store.reading() as work:
        run = await work.runs.get("run_1")
        versions = await work.versions.list(POLICY)
    values = [step.values for step in run.steps]
    assert [value["staleness_max"] for value in values] == [0, 1, 2, 2, 2]
    assert [value["steps_ahead"] for value in values] == [2, 2, 2, 1, 0]
    assert not any(name.startswith("refused_") for value in values for name in value)
    assert all(step.domains["words"].groups == 2 for step in run.steps)
    assert all(version.pins == () for version in versions)


async def test_interrupted_run_attempts_the_tasks_of_the_uninterrupted_one(store, config, base) -> None:
    """Sampling ahead too, the learner that takes over asks for the same Tasks, step by step."""
    options = {"overrides": {"max_staleness": 2, "data.rest_steps": 0}}
    whole = payload("grpo", steps=6, run_id="run_whole", **options)
    done = await run_job(store, config, whole, StubWorker(store, base).run(), stub_fleet(store))
    assert done.status is JobStatus.DONE, done.error
    job = await store.queue.enqueue("train", payload("grpo", steps=6, **options))
    background = [
        asyncio.ensure_future(StubWorker(store, base).run()),
        asyncio.ensure_future(stub_fleet(store)),
    ]
    learner = Learner(config=config, store=store, registry=CollectorRegistry())
    await learner.start()
    async with store.events.subscribe([VERSIONS]) as subscription:
        while True:
            async with store.reading() as work:
                run = next((run for run in await work.runs.list(POLICY) if run.id == "run_1"), None)
            if run is not None and len(run.steps) >= 2:
                break
            await subscription.wait(0.2)
    await learner.stop()
    second = Learner(config=config, store=store, registry=CollectorRegistry())
    await second.start()
    while (await store.queue.get(job.id)).status in (JobStatus.QUEUED, JobStatus.LEASED):
        await asyncio.sleep(0.1)
    await second.stop()
    for task in background:
        task.cancel()
    await asyncio.gather(*background, return_exceptions=True)
    chosen = {}
    async with store.reading() as work:
        for run_id in ("run_whole", "run_1"):
            ids = [
                f"grp_{run_id.rpartition('_')[2]}_{step:06d}_{index:03d}" for step in range(6) for index in range(2)
            ]
            chosen[run_id] = [(await work.groups.get(group_id)).task_id for group_id in ids]
    assert chosen["run_1"] == chosen["run_whole"]


async def test_an_alarm_stops_the_run_and_keeps_what_it_published(store, config, base) -> None:
    """The run ends as stopped with the reason, its versions and state stay, and no rollout is left in the queue."""
    alarms = {"alarms.stop": ["mismatch_kl"], "alarms.mismatch_kl": 1e-12, "alarms.patience": 2}
    done = await run_job(
        store,
        config,
        payload("grpo", steps=9, overrides={**alarms, "max_staleness": 2}),
        StubWorker(store, base).run(),
        stub_fleet(store),
    )
    assert done.status is JobStatus.DONE, done.error
    assert "mismatch_kl" in done.result["stopped"]
    async with store.reading() as work:
        run = await work.runs.get("run_1")
        checkpoint = await work.checkpoints.for_version(POLICY, run.steps[-1].version)
    assert run.status is RunStatus.STOPPED
    assert 2 <= len(run.steps) < 9
    assert "alarm at step" in (run.error or "")
    assert f"{POLICY}@{run.steps[-1].version}" in (run.error or "")
    assert [alarm.name for alarm in run.steps[-1].alarms] == ["mismatch_kl"]
    assert folder_checksum(Path(checkpoint.path)) == checkpoint.checksum
    assert (await store.queue.depth()).get(JobStatus.QUEUED, 0) == 0


async def test_a_gradient_that_is_not_finite_stops_the_run(store, config, base, monkeypatch) -> None:
    """The step is not taken: the run ends as stopped, and the version before it is the newest."""
    real, calls = Trainer.grpo_update, []

    def failing(self: Trainer, *args: object) -> object:
        calls.append(args)
        if len(calls) == 2:
            raise Diverged("the gradient norm is nan")
        return real(self, *args)

    monkeypatch.setattr(Trainer, "grpo_update", failing)
    worker = StubWorker(store, base).run()
    done = await run_job(store, config, payload("grpo", steps=4), worker, stub_fleet(store))
    assert done.status is JobStatus.DONE, done.error
    async with store.reading() as work:
        run = await work.runs.get("run_1")
        versions = await work.versions.list(POLICY)
    assert run.status is RunStatus.STOPPED
    assert "the gradient norm is nan (step 2)" in (run.error or "")
    assert [version.version for version in versions] == [1]
