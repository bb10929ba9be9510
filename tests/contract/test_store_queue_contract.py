"""The contract of the JobQueue, on SQLite and on PostgreSQL, with a clock in the test's hands."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from core.errors import InvalidTransition, LeaseLost, NotFound
from core.job import Job, JobStatus
from store.database import Database
from store.events import JOBS
from store.local_events import LocalEvents
from store.queue import JobQueue


class Clock:
    """Time that passes only when told."""

    def __init__(self) -> None:
        self.time = 1_000.0

    def __call__(self) -> float:
        return self.time


@pytest.fixture
def clock() -> Clock:
    """The queue's clock."""
    return Clock()


@pytest.fixture
async def events(tmp_path: Path) -> AsyncIterator[LocalEvents]:
    """The queue's events."""
    local = LocalEvents(tmp_path / "events", registry=CollectorRegistry())
    yield local
    await local.close()


@pytest.fixture
async def queue(database_url: str, events: LocalEvents, clock: Clock) -> AsyncIterator[JobQueue]:
    """A queue on each database in turn."""
    database = Database(database_url)
    yield JobQueue(database, events, clock=clock)
    await database.close()


async def claim_one(queue: JobQueue, owner: str = "a", lease_seconds: float = 10.0) -> Job:
    (job,) = await queue.claim(["work"], owner, lease_seconds=lease_seconds)
    return job


async def test_a_job_runs_once_and_keeps_its_result(queue: JobQueue, clock: Clock) -> None:
    """Enqueue, claim, complete: the result is stored and nothing is left to claim."""
    added = await queue.enqueue("work", {"n": 1, "text": "ü\x00"})
    job = await claim_one(queue)
    assert (job.id, job.payload, job.status) == (added.id, added.payload, JobStatus.LEASED)
    assert (job.attempts, job.token, job.owner, job.lease_until) == (1, 1, "a", clock.time + 10)
    assert await queue.claim(["work"], "b", lease_seconds=10) == []
    done = await queue.complete(job, {"answer": 42})
    assert (done.status, done.result, done.owner) == (JobStatus.DONE, {"answer": 42}, None)
    assert await queue.get(job.id) == done
    assert (await queue.depth())[JobStatus.DONE] == 1


async def test_a_claim_takes_only_its_kinds(queue: JobQueue) -> None:
    """A job of another kind stays queued."""
    await queue.enqueue("train", {})
    assert await queue.claim(["work"], "a", lease_seconds=10) == []
    assert len(await queue.claim(["work", "train"], "a", lease_seconds=10)) == 1


async def test_priority_first_then_arrival(queue: JobQueue) -> None:
    """Higher priority comes first; equals come in the order in which they were added."""
    low = await queue.enqueue_many("work", [{"n": n} for n in range(5)])
    high = await queue.enqueue_many("work", [{"n": n} for n in range(5)], priority=1)
    claimed = await queue.claim(["work"], "a", lease_seconds=10, limit=7)
    assert [job.id for job in claimed] == [job.id for job in high + low[:2]]


async def test_an_idempotency_key_adds_one_job(queue: JobQueue) -> None:
    """The second enqueue answers with the first job, also when it is done, and when both race."""
    first = await queue.enqueue("work", {"n": 1}, idempotency_key="k")
    assert await queue.enqueue("work", {"n": 2}, idempotency_key="k") == first
    done = await queue.complete(await claim_one(queue), {})
    assert await queue.enqueue("work", {}, idempotency_key="k") == done
    raced = await asyncio.gather(*(queue.enqueue("work", {}, idempotency_key="r") for _ in range(8)))
    assert len({job.id for job in raced}) == 1


async def test_a_job_waits_for_its_time(queue: JobQueue, clock: Clock) -> None:
    """``run_after`` holds a job back until then."""
    await queue.enqueue("work", {}, run_after=clock.time + 5)
    assert await queue.claim(["work"], "a", lease_seconds=10) == []
    clock.time += 5
    await claim_one(queue)


async def test_an_expired_lease_is_taken_over_and_the_late_result_refused(queue: JobQueue, clock: Clock) -> None:
    """After a take-over the stopped owner can neither finish, fail, prolong nor release the job."""
    await queue.enqueue("work", {})
    stopped = await claim_one(queue, "stopped")
    clock.time += 10
    taken = await claim_one(queue, "new")
    assert (taken.id, taken.attempts, taken.token) == (stopped.id, 2, 2)
    assert taken.error == "the lease of stopped ran out"
    for late in (
        queue.complete(stopped, {"from": "stopped"}),
        queue.fail(stopped, "late"),
        queue.heartbeat(stopped, 10),
        queue.release(stopped),
    ):
        with pytest.raises(LeaseLost):
            await late
    done = await queue.complete(taken, {"from": "new"})
    assert (done.result, done.error) == ({"from": "new"}, None)
    with pytest.raises(LeaseLost):
        await queue.complete(taken, {})


async def test_a_heartbeat_keeps_the_lease(queue: JobQueue, clock: Clock) -> None:
    """Prolonged in time, a lease is not taken over; and an owner that is late, but not replaced, may finish."""
    await queue.enqueue("work", {})
    job = await claim_one(queue)
    clock.time += 9
    assert (await queue.heartbeat(job, 10)).lease_until == clock.time + 10
    clock.time += 9
    assert await queue.claim(["work"], "b", lease_seconds=10) == []
    clock.time += 100
    assert (await queue.complete(job, {})).status is JobStatus.DONE


async def test_failures_are_retried_with_growing_pauses_then_buried(queue: JobQueue, clock: Clock) -> None:
    """Each failure waits longer; out of attempts the job is dead with its last error; requeue revives it."""
    await queue.enqueue("work", {}, max_attempts=3)
    for attempt, longest in ((1, 0.5), (2, 1.0)):
        failed = await queue.fail(await claim_one(queue), f"error {attempt}")
        assert failed.status is JobStatus.QUEUED
        assert longest / 2 <= failed.run_after - clock.time <= longest
        assert await queue.claim(["work"], "a", lease_seconds=10) == []
        clock.time += longest
    dead = await queue.fail(await claim_one(queue), "error 3")
    assert (dead.status, dead.error, dead.attempts) == (JobStatus.DEAD, "error 3", 3)
    assert await queue.dead() == [dead]
    revived = await queue.requeue(dead.id)
    assert (revived.status, revived.attempts, revived.token) == (JobStatus.QUEUED, 0, 3)
    assert (await claim_one(queue)).token == 4


async def test_a_hopeless_failure_is_buried_at_once(queue: JobQueue) -> None:
    """``retryable=False`` does not use up the other attempts."""
    await queue.enqueue("work", {})
    assert (await queue.fail(await claim_one(queue), "no such task", retryable=False)).status is JobStatus.DEAD


async def test_a_job_whose_owners_all_die_ends_dead(queue: JobQueue, clock: Clock) -> None:
    """Expired leases count as attempts, so a job that kills its workers stops coming back."""
    await queue.enqueue("work", {}, max_attempts=2)
    for _ in range(2):
        await claim_one(queue)
        clock.time += 10
    assert await queue.claim(["work"], "a", lease_seconds=10) == []
    (dead,) = await queue.dead()
    assert (dead.attempts, dead.error) == (2, "the lease of a ran out")


async def test_sweep_returns_expired_jobs(queue: JobQueue, clock: Clock) -> None:
    """Sweeping counts what it took back; a second sweep finds nothing."""
    await queue.enqueue_many("work", [{}] * 3)
    await queue.claim(["work"], "a", lease_seconds=10, limit=2)
    clock.time += 10
    assert await queue.sweep() == 2
    assert await queue.sweep() == 0
    assert (await queue.depth())[JobStatus.QUEUED] == 3


async def test_release_costs_no_attempt(queue: JobQueue) -> None:
    """A job handed back can be claimed at once with all its attempts; the old token is void."""
    await queue.enqueue("work", {}, max_attempts=1)
    job = await claim_one(queue)
    await queue.release(job)
    with pytest.raises(LeaseLost):
        await queue.complete(job, {})
    again = await claim_one(queue)
    assert (again.attempts, again.token) == (1, 2)


async def test_cancel_withdraws_queued_and_leased_jobs(queue: JobQueue) -> None:
    """A cancelled job is not claimed, and its owner's result is refused; a finished one cannot be cancelled."""
    queued, leased = await queue.enqueue_many("work", [{}, {}])
    await queue.cancel(queued.id)
    job = await claim_one(queue)
    assert job.id == leased.id
    with pytest.raises(InvalidTransition, match="only a dead job"):
        await queue.requeue(job.id)
    await queue.cancel(job.id)
    with pytest.raises(LeaseLost):
        await queue.complete(job, {})
    with pytest.raises(InvalidTransition):
        await queue.cancel(job.id)
    with pytest.raises(InvalidTransition):
        await queue.requeue(job.id)
    with pytest.raises(NotFound):
        await queue.cancel("job_absent")


async def test_get_many_keeps_order_and_misses_nothing(queue: JobQueue) -> None:
    """Jobs come back in the order asked for; an unknown id is an error, not a gap."""
    jobs = await queue.enqueue_many("work", [{"n": n} for n in range(4)])
    asked = [jobs[2].id, jobs[0].id, jobs[2].id]
    assert [job.id for job in await queue.get_many(asked)] == asked
    assert await queue.enqueue_many("work", []) == []
    with pytest.raises(NotFound, match="job_absent"):
        await queue.get_many([jobs[0].id, "job_absent"])


async def test_concurrent_owners_share_without_overlap(queue: JobQueue) -> None:
    """Several owners that claim at once get every job, each job once."""
    jobs = await queue.enqueue_many("work", [{"n": n} for n in range(60)])
    taken: Counter[str] = Counter()

    async def work(owner: str) -> None:
        while claimed := await queue.claim(["work"], owner, lease_seconds=60, limit=3):
            for job in claimed:
                taken[job.id] += 1
                await queue.complete(job, {"by": owner})

    while (await queue.depth())[JobStatus.QUEUED]:
        await asyncio.gather(*(work(f"owner-{n}") for n in range(6)))
    assert taken == Counter(job.id for job in jobs)


async def test_changes_are_announced(queue: JobQueue, events: LocalEvents) -> None:
    """Adding, finishing and failing a job wake those who watch jobs."""
    async with events.subscribe([JOBS]) as subscription:
        for step in ("enqueue", "complete", "enqueue", "fail"):
            if step == "enqueue":
                await queue.enqueue("work", {})
                assert await subscription.wait(30)
                job = await claim_one(queue)
            elif step == "complete":
                await queue.complete(job, {})
                assert await subscription.wait(30)
            else:
                await queue.fail(job, "x")
                assert await subscription.wait(30)
