"""The whole loop on real parts: attempts, GRPO, swaps, an evaluation, and a worker that is killed."""

import asyncio
import os
import signal

import pytest

from core.episode import EpisodeStatus
from core.job import JobStatus
from core.policy import PolicyVersion, ServingStatus
from core.run import RunStatus
from hone.opened_store import opened_store
from hone.training import request_run
from tests.e2e.conftest import DOMAIN, POLICY, Stack

pytestmark = [pytest.mark.engine, pytest.mark.timeout(900)]

SMALL = {"groups_per_step": 2, "group_size": 4, "learning_rate": 1e-4, "max_staleness": 0}


async def test_grpo_learns_from_recorded_episodes_and_publishes_what_it_learned(stack: Stack, trained: PolicyVersion):
    """A GRPO step trains on Turns sampled by the version that it names, and lineage leads back to them."""
    async with opened_store(stack.config) as store:
        run_id, job = await request_run(
            store,
            policy=POLICY,
            algorithm="grpo",
            domains=(DOMAIN,),
            steps=2,
            start_version=trained.version,
            seed=5,
            overrides=SMALL,
        )
        await stack.finished(job)
        async with store.reading() as tx:
            run = await tx.runs.get(run_id)
            assert run.status is RunStatus.FINISHED and len(run.steps) == 2
            published = sorted({step.version for step in run.steps} - {trained.version})
            assert published, "every group had equal rewards: nothing was learned"
            first = published[0]
            checkpoint = await tx.checkpoints.for_version(POLICY, first)
            episode_ids = await tx.lineage.episodes_of(checkpoint.id)
            assert episode_ids
            for episode_id in episode_ids:
                episode = await tx.episodes.get(episode_id)
                assert episode.status is EpisodeStatus.SCORED and episode.version == trained.version
                assert checkpoint.id in await tx.lineage.checkpoints_of(episode_id)
                for turn in await tx.turns.for_episode(episode_id):
                    assert turn.version == trained.version and turn.exact and turn.trainable
    values = run.steps[0].values
    assert abs(values["mismatch_kl"]) < 0.01
    assert values["ess"] > 0.95
    live = await stack.served(POLICY, published[-1])
    assert live.serving is ServingStatus.LIVE, live.serving_reason


async def test_an_evaluation_compares_on_the_same_tasks(stack: Stack, trained: PolicyVersion):
    """Both versions attempt the same held-out Tasks, and the Release carries the evidence."""
    payload = {
        "policy": POLICY,
        "version": trained.version,
        "baseline_version": 0,
        "domain": DOMAIN,
        "tasks": 6,
        "temperature": 1.0,
        "seed": 0,
    }
    async with opened_store(stack.config) as store:
        job = await stack.finished(await store.queue.enqueue("evaluate", payload))
        async with store.reading() as tx:
            evaluation = await tx.evaluations.get(job.result["evaluation_id"])
            episodes = await tx.episodes.list(policy=POLICY, purpose="evaluate", limit=100)
    assert evaluation.tasks + evaluation.invalid == 6
    by_version = {
        version: {item.task_id for item in episodes if item.version == version} for version in (0, trained.version)
    }
    assert by_version[0] == by_version[trained.version]


async def test_a_worker_killed_in_the_middle_of_an_episode_loses_nothing(stack: Stack, trained: PolicyVersion):
    """After SIGKILL and a restart every job is done, each with one scored Episode, and none is left running."""
    async with opened_store(stack.config) as store:
        async with store.reading() as tx:
            task_ids = (await tx.tasks.ids(domain=DOMAIN, split="train"))[:6]
        payloads = [
            {
                "task_id": task_id,
                "policy": POLICY,
                "version": trained.version,
                "variant": "standard",
                "group_id": None,
                "attempt": 0,
                "purpose": "train",
                "temperature": 1.0,
                "seed": 900 + index,
                "run_id": None,
            }
            for index, task_id in enumerate(task_ids)
        ]
        jobs = await store.queue.enqueue_many("rollout", payloads)
        await _until_one_runs(store, [job.id for job in jobs])
        worker = stack.processes["worker"]
        os.killpg(worker.pid, signal.SIGKILL)
        worker.wait()
        stack.start("worker")
        done = [await stack.finished(job) for job in jobs]
        assert all(job.status is JobStatus.DONE for job in done)
        async with store.reading() as tx:
            for job in done:
                episode = await tx.episodes.get(job.result["episode_id"])
                assert episode.status is EpisodeStatus.SCORED
                assert set(episode.turn_ids) == await tx.turns.existing(list(episode.turn_ids))
            left = await tx.episodes.list(policy=POLICY, purpose="train", status=EpisodeStatus.RUNNING)
    assert left == []


async def _until_one_runs(store, job_ids) -> None:
    async with asyncio.timeout(30):
        while True:
            jobs = await store.queue.get_many(job_ids)
            if any(job.status is JobStatus.LEASED for job in jobs):
                return
            await asyncio.sleep(0.01)
