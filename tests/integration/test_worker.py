"""Workers on a real database: jobs are done once, whatever happens to a worker."""

import asyncio
import signal
import sys
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from core.access import ApiKey, Scope, Tenant, hash_key
from core.config.load import environment_for_child
from core.episode import EpisodeStatus
from core.errors import AuthenticationFailed
from core.job import JobStatus
from core.release import Release, ReleaseStatus
from sandbox.domains.python_tool import PythonToolDomain, call_text
from sandbox.janitor import Janitor
from sandbox.runtimes.factory import make_runtime
from sandbox.worker import EVALUATE, ROLLOUT, Worker
from tests.sandbox_fakes import DirectRuntime, StubAnswer, StubGateway, serve_versions

KEY = "hone-test-key"
ROOT = Path(__file__).parents[2]


class Site:
    """A store with Tasks and a key, a scripted gateway, and workers on both."""

    def __init__(self, store, config):
        self.store = store
        self.config = config
        self.tasks = PythonToolDomain().generate("train", 8, 0)
        self.heldout = PythonToolDomain().generate("heldout", 8, 0)
        self.codes = {task.messages[-1]["content"]: task.demonstration for task in self.tasks}
        self.script = lambda body, number: StubAnswer(text=self.codes[body["messages"][-1]["content"]])
        self.gateway = StubGateway(self._answer, store=store)
        self.workers = []

    def _answer(self, body, number):
        return self.script(body, number)

    async def start(self):
        await self.gateway.start()
        async with self.store.transaction() as tx:
            await tx.tenants.add(Tenant(id="ten_1", name="local"))
            await tx.api_keys.add(
                ApiKey(
                    id="key_1",
                    tenant_id="ten_1",
                    name="worker",
                    key_hash=hash_key(KEY),
                    scopes=frozenset({Scope.INFERENCE}),
                    training_granted=True,
                )
            )
            await tx.tasks.add_many(self.tasks + self.heldout)

    async def worker(self, runtime=None, key=KEY):
        worker = Worker(
            config=self.config,
            store=self.store,
            runtime=runtime or DirectRuntime(),
            gateway_url=self.gateway.url,
            api_key=key,
            registry=CollectorRegistry(),
        )
        self.workers.append(worker)
        await worker.start()
        return worker

    async def stop(self):
        for worker in self.workers:
            await worker.stop()
        await self.gateway.stop()

    async def enqueue(self, *, max_attempts=3, **fields):
        return await self.store.queue.enqueue_many(
            ROLLOUT,
            [
                {"task_id": task.id, "policy": "coder", "version": 1, "temperature": 1.0, "seed": 0, **fields}
                for task in self.tasks
            ],
            max_attempts=max_attempts,
        )

    async def ended(self, jobs):
        """The jobs, once none of them is queued or leased."""
        while True:
            found = await self.store.queue.get_many([job.id for job in jobs])
            if all(job.status not in (JobStatus.QUEUED, JobStatus.LEASED) for job in found):
                return found
            await asyncio.sleep(0.05)

    async def episodes(self):
        async with self.store.reading() as tx:
            return await tx.episodes.list(limit=1000)


@pytest.fixture
async def site(store, make_config, database_url):
    """A site on SQLite and on PostgreSQL in turn."""
    config = make_config(
        {
            "store.url": database_url,
            "worker.lease_seconds": 1.5,
            "worker.concurrency": 4,
            "worker.api_key": KEY,
            "gateway.request_timeout_seconds": 60,
        }
    )
    site = Site(store, config)
    await site.start()
    yield site
    await site.stop()


async def test_jobs_are_done_and_reported(site):
    """Every rollout job ends with its Episode's id, Reward and status."""
    await site.worker()
    jobs = await site.ended(await site.enqueue())
    episodes = {episode.id: episode for episode in await site.episodes()}
    assert len(episodes) == len(jobs)
    for job in jobs:
        assert job.status is JobStatus.DONE
        episode = episodes[job.result["episode_id"]]
        assert job.result == {"episode_id": episode.id, "reward": 1.0, "success": True, "status": "scored"}
        assert (episode.tenant_id, episode.trainable, episode.metadata["job_id"]) == ("ten_1", True, job.id)


async def test_two_workers_share_a_queue_without_doing_anything_twice(site):
    """With several workers each job makes one Episode."""
    await asyncio.gather(site.worker(), site.worker())
    jobs = await site.ended(await site.enqueue())
    assert [job.status for job in jobs] == [JobStatus.DONE] * len(jobs)
    assert len(await site.episodes()) == len(jobs)


async def test_stopping_gives_jobs_back_at_once(site):
    """A worker that stops in mid-Episode expires it and releases the job unharmed; another one finishes."""
    answer = site.script
    site.script = lambda body, number: StubAnswer(delay_seconds=60)
    first = await site.worker()
    jobs = await site.enqueue()
    while len(site.gateway.calls) < 4:
        await asyncio.sleep(0.02)
    await first.stop()
    found = await site.store.queue.get_many([job.id for job in jobs])
    assert {job.status for job in found} == {JobStatus.QUEUED} and {job.attempts for job in found} == {0}
    assert {episode.status for episode in await site.episodes()} == {EpisodeStatus.EXPIRED}
    site.script = answer
    await site.worker()
    assert {job.status for job in await site.ended(jobs)} == {JobStatus.DONE}


async def test_a_worker_killed_in_mid_episode_loses_nothing(site, tmp_path):
    """SIGKILL while the policy is being asked: another worker finishes every job, and orphans expire."""
    answer = site.script
    site.script = lambda body, number: StubAnswer(delay_seconds=60)
    environment = environment_for_child(
        site.config, {"HONE_WORKER__GATEWAY_URL": site.gateway.url, "TMPDIR": str(tmp_path), "PYTHONPATH": "."}
    )
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.integration.sandbox_worker_process", env=environment, cwd=ROOT
    )
    jobs = await site.enqueue()
    while len(site.gateway.calls) < 4:
        await asyncio.sleep(0.02)
        assert process.returncode is None
    process.send_signal(signal.SIGKILL)
    await process.wait()
    orphans = await site.episodes()
    assert {episode.status for episode in orphans} == {EpisodeStatus.RUNNING} and len(orphans) == 4
    site.script = answer
    await site.worker()
    assert {job.status for job in await site.ended(jobs)} == {JobStatus.DONE}
    episodes = await site.episodes()
    statuses = [episode.status for episode in episodes]
    assert statuses.count(EpisodeStatus.SCORED) == len(jobs) == len(episodes) - 4
    assert {episode.id for episode in episodes if episode.status is EpisodeStatus.EXPIRED} == {
        episode.id for episode in orphans
    }


async def test_an_episode_whose_job_died_with_its_worker_expires(site, tmp_path, monkeypatch):
    """SIGKILL on a job's last attempt: nobody repeats it, and the janitor ends its Episode."""
    site.script = lambda body, number: StubAnswer(delay_seconds=60)
    environment = environment_for_child(
        site.config, {"HONE_WORKER__GATEWAY_URL": site.gateway.url, "TMPDIR": str(tmp_path), "PYTHONPATH": "."}
    )
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.integration.sandbox_worker_process", env=environment, cwd=ROOT
    )
    await site.enqueue(max_attempts=1)
    while len(site.gateway.calls) < 4:
        await asyncio.sleep(0.02)
        assert process.returncode is None
    process.send_signal(signal.SIGKILL)
    await process.wait()
    monkeypatch.setattr("sandbox.janitor.GRACE_SECONDS", 0.0)
    begun = {episode.metadata["job_id"] for episode in await site.episodes()}
    while {job.status for job in await site.store.queue.get_many(sorted(begun))} != {JobStatus.DEAD}:
        await site.store.queue.sweep()
        await asyncio.sleep(0.1)
    assert len((await Janitor(store=site.store).tidy()).episodes) == len(begun) >= 1
    assert {episode.status for episode in await site.episodes()} == {EpisodeStatus.EXPIRED}
    assert not await Janitor(store=site.store).tidy()


async def test_long_episodes_keep_their_lease(site):
    """Heartbeats hold a job for longer than one lease: nobody else takes it."""
    answer = site.script
    site.script = lambda body, number: StubAnswer(text=answer(body, number).text, delay_seconds=4)
    site.tasks = site.tasks[:2]
    await asyncio.gather(site.worker(), site.worker())
    jobs = await site.ended(await site.enqueue())
    assert [(job.status, job.attempts) for job in jobs] == [(JobStatus.DONE, 1)] * 2


async def test_infrastructure_failures_are_retried_and_wrong_payloads_are_not(site):
    """A broken sandbox costs an attempt and is repeated; a malformed or impossible job dies at once."""
    site.tasks = site.tasks[:1]
    runtime = DirectRuntime(broken=True)
    await site.worker(runtime)
    (job,) = await site.enqueue()
    while not [e for e in await site.episodes() if e.status is EpisodeStatus.INVALID]:
        await asyncio.sleep(0.02)
    runtime.broken = False
    (done,) = await site.ended([job])
    assert done.status is JobStatus.DONE and done.attempts > 1
    bad = await site.store.queue.enqueue(ROLLOUT, {"task": "x"})
    gone = await site.store.queue.enqueue(ROLLOUT, {"task_id": "task_none", "policy": "coder", "version": 1})
    malformed, missing = await site.ended([bad, gone])
    assert (malformed.status, malformed.attempts) == (JobStatus.DEAD, 1) and "task_id" in malformed.error
    assert (missing.status, missing.attempts) == (JobStatus.DEAD, 1) and "NotFound" in missing.error


async def test_an_evaluation_survives_the_death_of_its_worker(site):
    """An evaluate job taken over in the middle keeps the scored Episodes and moves the Release."""
    solved = {task.messages[-1]["content"]: task.verifiers[1].options["expected"] for task in site.heldout}
    gate = asyncio.Event()

    def script(body, number):
        if number >= 6 and not gate.is_set():
            return StubAnswer(delay_seconds=60)
        expected = solved[body["messages"][-1]["content"]]
        return StubAnswer(text=call_text(f"print({expected!r})" if body["model"] == "coder@2" else "print()"))

    site.script = script
    async with site.store.transaction() as tx:
        await tx.releases.add(Release(id="rel_1", policy="coder", version=2))
    await serve_versions(site.store, "coder", 2)
    first = await site.worker()
    payload = {"policy": "coder", "version": 2, "baseline_version": 1, "domain": "python_tool", "tasks": 8}
    job = await site.store.queue.enqueue(EVALUATE, payload)
    while len(site.gateway.calls) < 10:
        await asyncio.sleep(0.02)
    await first.stop()
    scored = {e.id for e in await site.episodes() if e.status is EpisodeStatus.SCORED}
    assert scored
    gate.set()
    await site.worker()
    (done,) = await site.ended([job])
    assert done.status is JobStatus.DONE, done.error
    async with site.store.reading() as tx:
        evaluation = await tx.evaluations.get(done.result["evaluation_id"])
        release = await tx.releases.get("coder", 2)
    assert (evaluation.success, evaluation.baseline_success, evaluation.tasks) == (1.0, 0.0, 8)
    assert release.status is ReleaseStatus.EVALUATED
    final = {e.id for e in await site.episodes() if e.status is EpisodeStatus.SCORED}
    assert scored <= final and len(final) == 16


async def test_an_unknown_key_is_refused_at_the_start(site):
    """A worker whose key the store does not know does not begin."""
    with pytest.raises(AuthenticationFailed):
        await site.worker(key="hone-other")


async def test_rollouts_run_in_the_configured_sandbox(site):
    """The same jobs with the isolating runtime of the configuration: calls run in its boxes."""
    runtime = make_runtime(site.config.sandbox)
    await runtime.start()
    try:
        worker = await site.worker(runtime)
        jobs = await site.ended(await site.enqueue())
        await worker.stop()
    finally:
        await runtime.stop()
    assert [(job.status, job.result) for job in jobs if not (job.result or {}).get("success")] == []
