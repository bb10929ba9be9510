"""What the janitor ends, and what it leaves alone."""

import pytest

from core.episode import EpisodeStatus
from core.job import Job, JobStatus
from core.policy import PolicyVersion
from core.run import RunStatus, TrainingRun
from sandbox.janitor import GRACE_SECONDS, SILENT_SECONDS, Leftovers, Snapshot, find_leftovers
from tests import nouns

NOW = 100_000.0


def run_of(status: RunStatus = RunStatus.RUNNING, job_id: str | None = "job_t") -> TrainingRun:
    return TrainingRun(
        id="run_1",
        policy="coder",
        algorithm="grpo",
        start_version=0,
        domains=("d",),
        planned_steps=1,
        seed=0,
        status=status,
        job_id=job_id,
    )


def look(**seen: object) -> Leftovers:
    empty = {"episodes": (), "newest_turns": {}, "pinned": (), "jobs": {}, "runs": {}}
    return find_leftovers(Snapshot(time=NOW, **{**empty, **seen}))


@pytest.mark.parametrize("status", list(JobStatus))
@pytest.mark.parametrize("age", [GRACE_SECONDS - 1, GRACE_SECONDS + 1])
def test_an_old_episode_of_an_ended_job_is_an_orphan(status, age) -> None:
    """Not while the job is queued or leased, nor in its first minute, nor when the job is not known."""
    episode = nouns.episode(id="ep_1", created_at=NOW - age, metadata={"job_id": "job_1"}, purpose="train")
    ended = status in (JobStatus.DONE, JobStatus.DEAD, JobStatus.CANCELLED)
    assert bool(look(episodes=[episode], jobs={"job_1": status}).episodes) == (ended and age > GRACE_SECONDS)
    assert not look(episodes=[episode])


def test_a_silent_conversation_of_a_client_is_over() -> None:
    """An hour after its newest Turn, not after its beginning."""
    episode = nouns.episode(
        id="ep_1", created_at=NOW - 2 * SILENT_SECONDS, purpose="client", status=EpisodeStatus.RUNNING
    )
    assert look(episodes=[episode]).episodes
    assert look(episodes=[episode], newest_turns={"ep_1": NOW - SILENT_SECONDS - 1}).episodes
    assert not look(episodes=[episode], newest_turns={"ep_1": NOW - 5})


def test_pins_go_with_their_holders() -> None:
    """Ended jobs and runs lose their pins; an operator, a running job and a running run keep theirs."""
    pins = ("operator", "job_done", "job_on", "run_1")
    version = PolicyVersion(policy="coder", version=3, kind="lora", origin="sft", pins=pins)
    jobs = {"job_done": JobStatus.DONE, "job_on": JobStatus.LEASED}
    assert look(pinned=[version], jobs=jobs, runs={"run_1": run_of()}).pins == {("coder", 3): {"job_done"}}
    finished = look(pinned=[version], jobs=jobs, runs={"run_1": run_of(RunStatus.FINISHED)})
    assert finished.pins == {("coder", 3): {"job_done", "run_1"}}


@pytest.mark.parametrize(
    ("run", "fails"),
    [
        (run_of(), True),
        (run_of(job_id=None), True),
        (run_of(job_id="job_later"), False),
        (run_of(RunStatus.FINISHED), False),
    ],
)
def test_a_running_run_fails_with_its_job(run, fails) -> None:
    """Only the job that leads the run takes it along."""
    job = Job(id="job_t", kind="train", payload={"run_id": "run_1"}, status=JobStatus.DEAD, error="lease ran out")
    assert bool(look(runs={"run_1": run}, given_up=[job]).runs) == fails
