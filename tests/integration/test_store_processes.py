"""Several processes on one store: take-over after a crash, fencing, wake-ups and writers that meet."""

import asyncio
import json
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from core.job import Job, JobStatus
from core.policy import Policy
from store.events import JOBS, VERSIONS
from store.store import Store

SCRIPT = Path(__file__).with_name("store_process.py")
ROOT = Path(__file__).parents[2]


class Process:
    """A child in one role of ``store_process.py``."""

    def __init__(self, child: asyncio.subprocess.Process) -> None:
        self._child = child

    async def said(self) -> dict[str, Any]:
        """Its next report."""
        assert self._child.stdout is not None
        line = await self._child.stdout.readline()
        assert line, "the process ended without saying more"
        report: dict[str, Any] = json.loads(line)
        return report

    def go_ahead(self) -> None:
        """Let it go on."""
        assert self._child.stdin is not None
        self._child.stdin.write(b"\n")

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to it."""
        self._child.send_signal(number)

    async def end(self) -> int:
        """Wait for its end."""
        return await self._child.wait()


Spawn = Callable[[str], Awaitable[Process]]


@pytest.fixture
async def spawn(database_url: str, tmp_path: Path) -> AsyncIterator[Spawn]:
    """Starts children on the same database."""
    children: list[asyncio.subprocess.Process] = []

    async def start(role: str) -> Process:
        child = await asyncio.create_subprocess_exec(
            sys.executable,
            str(SCRIPT),
            role,
            database_url,
            str(tmp_path / "data"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env={"PYTHONPATH": str(ROOT)},
        )
        children.append(child)
        return Process(child)

    yield start
    for child in children:
        if child.returncode is None:
            child.kill()
        await child.wait()


async def take_over(store: Store) -> Job:
    """Wait until there is a job to claim."""
    async with store.events.subscribe([JOBS]) as subscription:
        while not (jobs := await store.queue.claim(["work"], "successor", lease_seconds=60)):
            await subscription.wait(0.1)
    return jobs[0]


async def test_a_killed_workers_job_is_finished_by_another(store: Store, spawn: Spawn) -> None:
    """SIGKILL in mid-job: when the lease has run out another owner gets the job and finishes it."""
    job = await store.queue.enqueue("work", {})
    worker = await spawn("work")
    assert (await worker.said())["claimed"] == job.id
    worker.signal(signal.SIGKILL)
    assert await worker.end() == -signal.SIGKILL
    taken = await take_over(store)
    assert (taken.id, taken.attempts, taken.token) == (job.id, 2, 2)
    await store.queue.complete(taken, {"by": "successor"})
    assert (await store.queue.get(job.id)).result == {"by": "successor"}


async def test_a_stopped_worker_that_comes_back_is_refused(store: Store, spawn: Spawn) -> None:
    """SIGSTOP, take-over, SIGCONT: the late result is not taken, and there is exactly one result."""
    job = await store.queue.enqueue("work", {})
    worker = await spawn("work")
    await worker.said()
    worker.signal(signal.SIGSTOP)
    taken = await take_over(store)
    worker.go_ahead()
    worker.signal(signal.SIGCONT)
    assert (await worker.said())["result"] == "refused"
    await store.queue.complete(taken, {"by": "successor"})
    assert (await store.queue.get(job.id)).result == {"by": "successor"}


async def test_heartbeats_keep_a_long_job_with_its_worker(store: Store, spawn: Spawn) -> None:
    """A worker that outlives several leases and keeps beating finishes its own job."""
    job = await store.queue.enqueue("work", {})
    worker = await spawn("work")
    first = await worker.said()
    until = (await store.queue.get(job.id)).lease_until
    assert until is not None
    while ((await store.queue.get(job.id)).lease_until or 0.0) < until + 2:
        assert await store.queue.claim(["work"], "thief", lease_seconds=60) == []
        await asyncio.sleep(0.1)
    worker.go_ahead()
    assert (await worker.said())["result"] == "taken"
    done = await store.queue.get(job.id)
    assert (done.status, done.token) == (JobStatus.DONE, first["token"])


async def test_an_event_wakes_another_process_without_redis(store: Store, spawn: Spawn) -> None:
    """On one machine local events reach a process that shares the database or the data folder."""
    watcher = await spawn("wait_for_versions")
    assert await watcher.said() == {"ready": True}
    await store.events.publish(VERSIONS)
    assert await watcher.said() == {"woken": True}


async def test_writers_of_several_processes_do_not_disturb_each_other(store: Store, spawn: Spawn) -> None:
    """Numbers minted at once by several processes are all different, and no job is lost."""
    async with store.transaction() as work:
        await work.policies.add(Policy(name="coder", base="smol"))
    writers = [await spawn("write") for _ in range(3)]
    for writer in writers:
        await writer.said()
    for writer in writers:
        writer.go_ahead()
    minted = [number for writer in writers for number in (await writer.said())["minted"]]
    assert sorted(minted) == list(range(1, 46))
    assert (await store.queue.depth())[JobStatus.QUEUED] == 45
