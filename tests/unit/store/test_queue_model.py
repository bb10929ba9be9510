"""The JobQueue against a model of it: any sequence of steps leaves both in the same state."""

import asyncio
import atexit
import shutil
import tempfile
from collections.abc import Coroutine
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, rule

from core.errors import InvalidTransition, LeaseLost
from core.job import Job, JobStatus
from store.database import Database
from store.migrate import upgrade
from store.queue import JobQueue

KINDS = ("rollout", "evaluate")
LEASE = 10.0
SECONDS = st.sampled_from([0.0, 1.0, LEASE, 60.0])


class SilentEvents:
    """Events that nobody hears."""

    async def publish(self, topic: str, data: Any = None) -> None:
        """Nothing."""

    def subscribe(self, topics: Any) -> Any:
        """Not used here."""
        raise NotImplementedError

    async def close(self) -> None:
        """Nothing."""


@dataclass
class Model:
    """One job as it should be."""

    id: str
    kind: str
    priority: int
    max_attempts: int
    run_after: float
    key: str | None
    status: JobStatus = JobStatus.QUEUED
    attempts: int = 0
    token: int = 0
    owner: str | None = None
    lease_until: float | None = None
    result: dict[str, Any] | None = field(default=None)

    def queue_again(self, status: JobStatus = JobStatus.QUEUED) -> None:
        """End the lease."""
        self.status, self.owner, self.lease_until = status, None, None


@cache
def migrated_template() -> Path:
    """A migrated SQLite file, made once."""
    folder = tempfile.mkdtemp(prefix="hone-queue-model-")
    atexit.register(shutil.rmtree, folder)
    path = Path(folder) / "template.db"
    upgrade(f"sqlite+aiosqlite:///{path}")
    return path


class QueueMachine(RuleBasedStateMachine):
    """Owners, operators and time do what they like."""

    jobs: Bundle[str] = Bundle("jobs")
    leases: Bundle[Job] = Bundle("leases")

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="hone-queue-model-"))
        shutil.copy(migrated_template(), self.folder / "hone.db")
        self.time = 1_000.0
        self.runner = asyncio.Runner()
        self.database = self.run(self.connect())
        self.queue = JobQueue(self.database, SilentEvents(), clock=lambda: self.time)
        self.model: dict[str, Model] = {}

    async def connect(self) -> Database:
        return Database(f"sqlite+aiosqlite:///{self.folder / 'hone.db'}")

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return self.runner.run(coroutine)

    def teardown(self) -> None:
        self.run(self.database.close())
        self.runner.close()
        shutil.rmtree(self.folder)

    @rule(
        target=jobs,
        kind=st.sampled_from(KINDS),
        priority=st.integers(-1, 1),
        max_attempts=st.integers(1, 3),
        delay=SECONDS,
        key=st.sampled_from([None, None, "k1", "k2"]),
    )
    def enqueue(self, kind: str, priority: int, max_attempts: int, delay: float, key: str | None) -> str:
        run_after = self.time + delay
        job = self.run(
            self.queue.enqueue(
                kind,
                {},
                priority=priority,
                max_attempts=max_attempts,
                run_after=run_after,
                idempotency_key=key,
            )
        )
        known = next((m for m in self.model.values() if key is not None and m.key == key), None)
        if known is None:
            self.model[job.id] = Model(job.id, kind, priority, max_attempts, run_after, key)
        else:
            assert job.id == known.id
        return str(job.id)

    @rule(
        target=leases,
        owner=st.sampled_from(["a", "b"]),
        kinds=st.sampled_from([KINDS, KINDS[:1]]),
        limit=st.integers(1, 3),
    )
    def claim(self, owner: str, kinds: tuple[str, ...], limit: int) -> Any:
        claimed = self.run(self.queue.claim(kinds, owner, lease_seconds=LEASE, limit=limit))
        ready = [m for m in self.model.values() if self.is_ready(m, kinds)]
        if ready or any(self.is_expired(m) for m in self.model.values()):
            self.expire()
            ready = [m for m in self.model.values() if self.is_ready(m, kinds)]
        expected = sorted(ready, key=lambda m: -m.priority)[:limit]
        assert [job.id for job in claimed] == [m.id for m in expected]
        for m in expected:
            m.status, m.owner, m.lease_until = JobStatus.LEASED, owner, self.time + LEASE
            m.attempts += 1
            m.token += 1
        return multiple(*claimed)

    @rule(lease=leases)
    def heartbeat(self, lease: Job) -> None:
        if self.finish(lease, self.queue.heartbeat(lease, LEASE)):
            self.model[lease.id].lease_until = self.time + LEASE

    @rule(lease=consumes(leases), number=st.integers())
    def complete(self, lease: Job, number: int) -> None:
        if self.finish(lease, self.queue.complete(lease, {"n": number})):
            self.model[lease.id].queue_again(JobStatus.DONE)
            self.model[lease.id].result = {"n": number}

    @rule(lease=leases, retryable=st.booleans())
    def fail(self, lease: Job, retryable: bool) -> None:
        m = self.model[lease.id]
        failed = self.finish(lease, self.queue.fail(lease, "broken", retryable=retryable))
        if failed:
            again = retryable and m.attempts < m.max_attempts
            m.queue_again(JobStatus.QUEUED if again else JobStatus.DEAD)
            if again:
                assert self.time < failed.run_after <= self.time + 60
            m.run_after = failed.run_after

    @rule(lease=leases)
    def release(self, lease: Job) -> None:
        if self.finish(lease, self.queue.release(lease)):
            self.model[lease.id].queue_again()
            self.model[lease.id].attempts -= 1

    @rule(job_id=jobs)
    def cancel(self, job_id: str) -> None:
        m = self.model[job_id]
        if m.status in (JobStatus.QUEUED, JobStatus.LEASED):
            self.run(self.queue.cancel(job_id))
            m.queue_again(JobStatus.CANCELLED)
        else:
            with pytest.raises(InvalidTransition):
                self.run(self.queue.cancel(job_id))

    @rule(job_id=jobs)
    def requeue(self, job_id: str) -> None:
        m = self.model[job_id]
        if m.status is JobStatus.DEAD:
            self.run(self.queue.requeue(job_id))
            m.queue_again()
            m.attempts, m.run_after = 0, 0.0
        else:
            with pytest.raises(InvalidTransition):
                self.run(self.queue.requeue(job_id))

    @rule()
    def sweep(self) -> None:
        assert self.run(self.queue.sweep()) == self.expire()

    @rule(seconds=SECONDS)
    def time_passes(self, seconds: float) -> None:
        self.time += seconds

    @invariant()
    def both_agree(self) -> None:
        stored = self.run(self.queue.get_many(list(self.model)))
        for job, m in zip(stored, self.model.values(), strict=True):
            assert (job.status, job.attempts, job.token) == (m.status, m.attempts, m.token)
            assert (job.owner, job.lease_until, job.run_after) == (m.owner, m.lease_until, m.run_after)
            assert job.result == m.result
            assert job.attempts <= job.max_attempts
            assert (job.status is JobStatus.LEASED) == (job.owner is not None)
        depth = self.run(self.queue.depth())
        assert sum(depth.values()) == len(self.model)

    def finish(self, lease: Job, step: Coroutine[Any, Any, Job]) -> Job | None:
        """Run a fenced step: it must succeed for the holder of the newest lease, and for nobody else."""
        m = self.model[lease.id]
        if m.status is JobStatus.LEASED and m.token == lease.token:
            job: Job = self.run(step)
            return job
        with pytest.raises(LeaseLost):
            self.run(step)
        return None

    def is_ready(self, m: Model, kinds: tuple[str, ...]) -> bool:
        return m.status is JobStatus.QUEUED and m.kind in kinds and m.run_after <= self.time

    def is_expired(self, m: Model) -> bool:
        return m.lease_until is not None and m.lease_until <= self.time

    def expire(self) -> int:
        expired = [m for m in self.model.values() if self.is_expired(m)]
        for m in expired:
            m.queue_again(JobStatus.DEAD if m.attempts >= m.max_attempts else JobStatus.QUEUED)
        return len(expired)


class TestQueueModel(QueueMachine.TestCase):  # type: ignore[misc, valid-type]
    """No sequence of steps makes the queue differ from its model."""

    settings = settings(
        max_examples=25,
        stateful_step_count=30,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
