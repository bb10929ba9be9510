"""Whole training runs against a SQLite store, with a worker and a fleet reduced to what the learner sees of them."""

import asyncio
import json
import shutil
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from core.config.schema import HoneConfig
from core.errors import CorruptArtefact, LearnerError, StoreError
from core.job import JobStatus
from core.policy import Base, ServingStatus
from core.release import ReleaseStatus
from core.run import RunStatus
from learner.checkpoints import WrittenCheckpoint
from learner.main import Learner, apply_overrides
from learner.publish import publish, wait_until_served
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


async def test_sft_then_grpo_leave_versions_with_checkpoints_releases_and_lineage(store, config, base) -> None:
    """SFT publishes one version, GRPO one per step on top of it; each has all that a release needs."""
    done = await run_job(store, config, payload("sft", steps=0, run_id="run_sft"), stub_fleet(store))
    assert done.status is JobStatus.DONE, done.error
    assert done.result == {"run_id": "run_sft", "versions": [1]}
    worker = StubWorker(store, base, spoil=lambda job: job.payload["attempt"] == 1)
    done = await run_job(store, config, payload("grpo", steps=3, start_version=1), worker.run(), stub_fleet(store))
    assert done.status is JobStatus.DONE, done.error
    assert done.result == {"run_id": "run_1", "versions": [2, 3, 4]}
    async with store.reading() as work:
        sft, grpo = await work.runs.get("run_sft"), await work.runs.get("run_1")
        versions = await work.versions.list(POLICY)
        checkpoints = [await work.checkpoints.for_version(POLICY, version.version) for version in versions]
        releases = await work.releases.list(POLICY)
        lineage = await work.lineage.episodes_of(checkpoints[1].id)
        episodes = [await work.episodes.get(episode_id) for episode_id in lineage]
    assert [sft.status, grpo.status] == [RunStatus.FINISHED, RunStatus.FINISHED]
    assert len(sft.steps) == 3
    assert sft.steps[-1].version == 1
    assert [step.version for step in grpo.steps] == [2, 3, 4]
    assert [version.parent_version for version in versions] == [0, 1, 2, 3]
    assert [version.origin for version in versions] == ["sft", "grpo", "grpo", "grpo"]
    assert {release.status for release in releases} == {ReleaseStatus.CANDIDATE}
    assert len(releases) == 4
    for checkpoint in checkpoints:
        assert folder_checksum(Path(checkpoint.path)) == checkpoint.checksum
        assert checkpoint.base_fingerprint == base.fingerprint
        assert checkpoint.lora_rank == 4
    assert len(lineage) == 6
    assert {episode.version for episode in episodes} == {1}
    assert set(checkpoints[1].provenance.episode_ids) == set(lineage)
    first = grpo.steps[0].values
    # The stub samples with the very weights that the learner trains: first batch on-policy, later ones one behind.
    assert first["mismatch_kl"] < 1e-6
    assert first["ess"] == pytest.approx(1.0, abs=1e-3)
    assert grpo.steps[1].values["mismatch_kl"] > first["mismatch_kl"]
    assert {"swap_seconds", "generate_seconds", "train_seconds", "entropy"} <= set(first)
    # Spoiled attempts were asked for again: attempt 1 became attempt 1 + group size.
    assert sum(job.payload["attempt"] == 4 for job in worker.jobs) == 6


async def test_a_grpo_step_can_mix_in_other_losses(store, config, base) -> None:
    """With weights, demonstrations, best attempts and preferences enter the same step, and are shown."""
    weights = {"losses.sft": 0.5, "losses.dpo": 0.2, "losses.rejection": 0.1, "losses.rejection_above": 0.0}
    asked = payload("grpo", steps=1, overrides=weights)
    done = await run_job(store, config, asked, StubWorker(store, base).run(), stub_fleet(store))
    assert done.status is JobStatus.DONE, done.error
    async with store.reading() as work:
        (step,) = (await work.runs.get("run_1")).steps
    parts = {"policy_loss": 1.0, "sft_loss": 0.5, "dpo_loss": 0.2, "rejection_loss": 0.1}
    assert step.loss == pytest.approx(sum(weight * step.values[name] for name, weight in parts.items()))
    assert step.values["pairs"] == 2


async def test_refused_version_fails_the_run_with_the_fleets_reason(store, config, base) -> None:
    """A refused version ends the run; the reason is in job and run, and no rollout that was asked for stays."""
    done = await run_job(
        store,
        config,
        payload("grpo", steps=2),
        StubWorker(store, base).run(at_most=6),
        stub_fleet(store, verdict=ServingStatus.REFUSED),
    )
    depth = await store.queue.depth()
    assert (depth[JobStatus.DONE], depth[JobStatus.CANCELLED], depth[JobStatus.QUEUED]) == (6, 6, 0)
    assert done.status is JobStatus.DEAD
    assert "the probe failed" in (done.error or "")
    async with store.reading() as work:
        run = await work.runs.get("run_1")
    assert run.status is RunStatus.FAILED
    assert "the probe failed" in (run.error or "")


async def test_refused_sft_version_never_becomes_a_finished_run(store, config) -> None:
    """However often the job is repeated, a run whose only version was refused ends as failed."""
    refusing = stub_fleet(store, verdict=ServingStatus.REFUSED)
    done = await run_job(store, config, payload("sft", steps=1), refusing, max_attempts=3)
    assert (done.status, done.attempts) == (JobStatus.DEAD, 3)
    async with store.reading() as work:
        run = await work.runs.get("run_1")
        versions = await work.versions.list(POLICY)
    assert run.status is RunStatus.FAILED
    assert "the probe failed" in (run.error or "")
    assert [version.pins for version in versions] == [()]


async def test_a_store_that_fails_for_a_moment_ends_no_learner(store, config, monkeypatch) -> None:
    """Leasing and reporting are tried again after a pause."""
    monkeypatch.setattr("learner.main._PAUSE_SECONDS", 0.05)
    failures = {"claim": 2, "complete": 2}

    def failing(name: str) -> Callable[..., Awaitable[object]]:
        real = getattr(store.queue, name)

        async def call(*args: object, **options: object) -> object:
            if failures[name]:
                failures[name] -= 1
                raise StoreError("the database failed")
            return await real(*args, **options)

        return call

    for name in failures:
        monkeypatch.setattr(store.queue, name, failing(name))
    done = await run_job(store, config, payload("sft", steps=1), stub_fleet(store))
    assert done.status is JobStatus.DONE, done.error
    assert failures == {"claim": 0, "complete": 0}


async def test_lost_resume_state_is_an_error_and_no_new_start(store, config) -> None:
    """A run that has published and whose resume states are gone says so, and mints nothing."""
    done = await run_job(store, config, payload("sft", steps=1), stub_fleet(store))
    assert done.status is JobStatus.DONE, done.error
    shutil.rmtree(config.data_dir / "runs")
    done = await run_job(store, config, payload("sft", steps=1), stub_fleet(store))
    assert done.status is JobStatus.DEAD
    assert "newest resume state" in (done.error or "")
    async with store.reading() as work:
        assert len(await work.versions.list(POLICY)) == 1


async def test_stopped_learner_is_resumed_by_another_to_the_same_numbers(store, config, base) -> None:
    """A learner that stops after a step hands the job back; the next one ends with the uninterrupted run's losses."""
    uninterrupted = await run_job(
        store,
        config,
        payload("grpo", steps=3, run_id="run_whole", overrides={"max_staleness": 0}),
        StubWorker(store, base).run(),
        stub_fleet(store),
    )
    assert uninterrupted.status is JobStatus.DONE, uninterrupted.error
    job = await store.queue.enqueue("train", payload("grpo", steps=3, overrides={"max_staleness": 0}))
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
            if run is not None and run.steps:
                break
            await subscription.wait(0.2)
    await learner.stop()
    handed_back = await store.queue.get(job.id)
    assert handed_back.status is JobStatus.QUEUED
    second = Learner(config=config, store=store, registry=CollectorRegistry())
    await second.start()
    while (await store.queue.get(job.id)).status in (JobStatus.QUEUED, JobStatus.LEASED):
        await asyncio.sleep(0.1)
    await second.stop()
    for task in background:
        task.cancel()
    await asyncio.gather(*background, return_exceptions=True)
    assert (await store.queue.get(job.id)).status is JobStatus.DONE
    async with store.reading() as work:
        whole, resumed = await work.runs.get("run_whole"), await work.runs.get("run_1")
    assert [step.step for step in resumed.steps] == [1, 2, 3]
    # The same seed samples the same Episodes from the same weights, so the runs are equal to the last digit.
    assert [step.loss for step in resumed.steps] == [step.loss for step in whole.steps]
    assert [step.gradient_norm for step in resumed.steps] == [step.gradient_norm for step in whole.steps]


async def test_learner_that_was_overtaken_publishes_nothing(store, config, base) -> None:
    """When another learner has recorded more steps of the run, publishing fails and mints no version."""
    done = await run_job(store, config, payload("sft", steps=1), stub_fleet(store))
    assert done.status is JobStatus.DONE, done.error
    async with store.reading() as work:
        run = await work.runs.get("run_1")
        checkpoint = await work.checkpoints.for_version(POLICY, 1)
    written = WrittenCheckpoint(
        id="ckpt_late",
        path=Path(checkpoint.path),
        checksum=checkpoint.checksum,
        lora_rank=4,
        provenance=checkpoint.provenance,
        probe=checkpoint.probe,
    )
    behind = run.model_copy(update={"steps": ()})
    with pytest.raises(LearnerError, match="another learner"):
        await publish(store, written, run=behind, base=base, parent_version=0, record_step=lambda version: behind)
    async with store.reading() as work:
        assert [version.version for version in await work.versions.list(POLICY)] == [1]


async def test_no_worker_is_said_after_the_time_out(store, config) -> None:
    """Without Episodes the run fails with what to look at, and withdraws its jobs."""
    quick = config.model_copy(update={"learner": apply_overrides(config.learner, {"episode_timeout_seconds": 0.5})})
    done = await run_job(store, quick, payload("grpo", steps=1))
    assert done.status is JobStatus.DEAD
    assert "no EpisodeGroup" in (done.error or "")
    assert (await store.queue.depth()).get(JobStatus.QUEUED, 0) == 0


async def test_malformed_payload_is_dead_at_once(store, config) -> None:
    """A payload that can never work is not tried again."""
    done = await run_job(store, config, {"run_id": "run_1", "policy": POLICY}, max_attempts=3)
    assert done.status is JobStatus.DEAD
    assert done.attempts == 1


async def test_tampered_parent_checkpoint_is_refused(store, config) -> None:
    """A run does not start from a folder that changed since it was published."""
    done = await run_job(store, config, payload("sft", steps=1, run_id="run_sft"), stub_fleet(store))
    assert done.status is JobStatus.DONE, done.error
    async with store.reading() as work:
        checkpoint = await work.checkpoints.for_version(POLICY, 1)
    (Path(checkpoint.path) / "provenance.json").write_text("{}")
    done = await run_job(store, config, payload("sft", steps=1, run_id="run_2", start_version=1))
    assert done.status is JobStatus.DEAD
    assert CorruptArtefact.__name__ in (done.error or "")


async def test_waiting_for_a_version_that_nobody_serves_ends(store) -> None:
    """Without a fleet the wait ends in a LearnerError with a hint."""
    async with store.transaction() as work:
        await work.versions.mint(POLICY, kind="lora", origin="sft")
    assert await wait_until_served(store, POLICY, 0, timeout_seconds=0.1) < 1.0
    with pytest.raises(LearnerError, match="was not served"):
        await wait_until_served(store, POLICY, 1, timeout_seconds=0.1)


async def test_two_ranks_train_as_one(store, config) -> None:
    """A learner that starts its own second rank records the losses of a learner with one rank."""
    done = await run_job(store, config, payload("sft", steps=3, run_id="run_one"), stub_fleet(store))
    assert done.status is JobStatus.DONE, done.error
    two = config.model_copy(update={"learner": apply_overrides(config.learner, {"ranks": 2, "zero_stage": 2})})
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        str(Path(__file__).with_name("two_rank_learner.py")),
        two.model_dump_json(),
        json.dumps(payload("sft", steps=3, run_id="run_two")),
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(Path(__file__).parents[2]), "OMP_NUM_THREADS": "1"},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    fleet = asyncio.create_task(stub_fleet(store))
    stdout, stderr = await process.communicate()
    fleet.cancel()
    await asyncio.gather(fleet, return_exceptions=True)
    assert process.returncode == 0, stderr.decode()[-4000:]
    losses = json.loads(stdout.decode().splitlines()[-1])
    async with store.reading() as work:
        one = await work.runs.get("run_one")
    assert losses == pytest.approx([step.loss for step in one.steps], rel=1e-4)
