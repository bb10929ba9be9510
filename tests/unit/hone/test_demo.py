"""The demo's checks, its isolation, and how it fails."""

import asyncio
import json
import os
import signal

import httpx
import pytest

from core.config.sandbox import WorkerSection
from core.config.schema import HoneConfig, StoreSection
from core.config.serving import FleetSection
from core.deployment import Deployment, DeploymentStatus
from core.errors import EngineUnavailable, LearnerError, SandboxError
from core.evaluation import Evaluation
from core.run import TrainingRun
from core.statistics.intervals import Interval
from core.variant import Variant
from hone import leftovers
from hone.demo import main as module
from hone.demo.main import demo_settings, run_demo
from hone.demo.stages import request_counts
from hone.demo.summary import Figures, checks_of
from hone.jobs import finished, nothing_to_check
from hone.leftovers import end_leftover_engines
from hone.signals import until_signal
from hone.supervisor import Supervisor
from hone.training import request_run, watch_run
from hone.up import engines_ready

CHECKS = [
    "heldout_tasks",
    "heldout_base",
    "heldout_start",
    "heldout_trained",
    "heldout_gain_ci_low",
    "heldout_gain_ci_high",
    "grpo_steps",
    "requests",
    "failed_requests",
    "versions_swapped",
    "swap_seconds_max",
    "total_seconds",
]


def _figures() -> Figures:
    interval = Interval(mean=0.1, low=0.0, high=0.2)
    evaluation = Evaluation(
        id="e",
        policy="demo",
        version=2,
        baseline_version=1,
        domain="d",
        temperature=1.0,
        tasks=200,
        success=0.5,
        baseline_success=0.4,
        gain=interval,
        reward=0.5,
        baseline_reward=0.4,
    )
    run = TrainingRun(
        id="r", policy="demo", algorithm="grpo", start_version=1, domains=("d",), planned_steps=1, seed=0
    )
    return Figures(
        warmup=evaluation,
        trained=evaluation,
        base_interval=interval,
        start_interval=interval,
        trained_interval=interval,
        run=run,
        requests=10,
        failed_requests=0,
        swap_seconds=(),
    )


def test_the_checks_have_the_names_that_are_compared_between_runs():
    """Exactly these names, in this order."""
    assert [check.name for check in checks_of(_figures(), 1.0)] == CHECKS


def test_the_demo_is_cut_off_from_every_other_installation():
    """Neither a configured database, gateway or key nor somebody's engines are touched."""
    config = HoneConfig(
        store=StoreSection(url="postgresql+asyncpg://db/hone"),
        worker=WorkerSection(gateway_url="http://elsewhere", api_key="k", concurrency=3),
        fleet=FleetSection(attach={"fast": "http://elsewhere"}),
    )
    settings = demo_settings(config)
    assert settings.store == StoreSection()
    assert settings.gateway_url == "http://127.0.0.1:8400"
    assert settings.worker.api_key.get_secret_value() == ""
    assert settings.worker.concurrency == 3
    assert settings.fleet.attach == {}


def test_failed_requests_count_errors_and_streams_that_broke_off():
    """Only API routes count as requests; a stream that broke off after its start is one failure, not two."""
    text = (
        "# TYPE hone_requests counter\n"
        'hone_requests_total{route="/v1/chat/completions",model="m",status="200"} 7\n'
        'hone_requests_total{route="/v1/chat/completions",model="m",status="503"} 2\n'
        'hone_requests_total{route="/health",model="",status="500"} 5\n'
        'hone_requests_total{route="/v1/chat/completions",model="m",status="599"} 1\n'
        "# TYPE hone_stream_failures counter\n"
        "hone_stream_failures_total 1\n"
    )
    assert request_counts(text) == (10, 3)


@pytest.mark.parametrize("error", [OSError("disk"), TimeoutError(), KeyError("x"), httpx.ReadError("gone")])
def test_whatever_escapes_becomes_a_failed_summary(error, tmp_path, monkeypatch):
    """Exit code 1, a summary that says why, and nothing of an earlier run left."""

    async def fail(*_):
        raise error

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(module, "_run", fail)
    folder = tmp_path / "runs" / "demo"
    folder.mkdir(parents=True)
    (folder / "report.html").write_text("old")
    assert run_demo(HoneConfig(), seed=0, keep=False) == 1
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["outcome"] == "failed"
    assert type(error).__name__ in summary["error"]
    assert not (folder / "report.html").exists()


def test_a_signal_ends_the_demo_with_130(tmp_path, monkeypatch):
    """The work is cancelled once and cleans up; a second signal meanwhile changes nothing."""
    cleaned = []

    async def work(*_):
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.sleep(60)
        finally:
            os.kill(os.getpid(), signal.SIGHUP)
            await asyncio.sleep(0.01)
            cleaned.append(True)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(module, "_run", work)
    assert run_demo(HoneConfig(), seed=0, keep=False) == 130
    assert cleaned == [True]
    assert json.loads((tmp_path / "runs" / "demo" / "summary.json").read_text())["outcome"] == "failed"


async def test_work_that_ends_by_itself_gives_its_result():
    """Without a signal the result comes through."""

    async def work() -> int:
        return 3

    assert await until_signal(work()) == 3


@pytest.fixture
async def sqlite_store(fresh_sqlite_url, open_store):
    """A Store on SQLite."""
    return await open_store(fresh_sqlite_url)


async def test_a_job_that_nobody_takes_is_cancelled(sqlite_store):
    """The wait ends with what to start, and the job is withdrawn."""
    job = await sqlite_store.queue.enqueue("rollout", {})
    with pytest.raises(SandboxError, match="no worker took it"):
        await finished(sqlite_store, job, check=nothing_to_check, seconds=0.0)
    assert (await sqlite_store.queue.get(job.id)).status == "cancelled"


async def test_a_run_that_no_learner_takes_is_withdrawn(sqlite_store):
    """LearnerError with how to start a learner."""
    run_id, job = await request_run(
        sqlite_store, policy="p", algorithm="sft", domains=("d",), steps=1, start_version=0, seed=0
    )
    with pytest.raises(LearnerError, match="no learner has taken the job"):
        async for _ in watch_run(sqlite_store, run_id=run_id, job=job, check=nothing_to_check, queued_seconds=0.0):
            raise AssertionError("there is no step")
    assert (await sqlite_store.queue.get(job.id)).status == "cancelled"


def _row(name: str, status: DeploymentStatus, at: float, reason: str | None = None) -> Deployment:
    return Deployment(
        id=name,
        base="smollm2-135m",
        variant=Variant(name),
        engine="vllm",
        url="http://127.0.0.1:1",
        status=status,
        status_reason=reason,
        heartbeat_at=at,
        created_at=at,
    )


async def test_a_failed_engine_start_is_final_and_an_old_row_is_not(sqlite_store, make_config, tmp_path):
    """UNHEALTHY since the start raises with the reason; what an earlier fleet left does not count either way."""
    supervisor = Supervisor(environment={}, log_folder=tmp_path)
    config = make_config()
    async with sqlite_store.transaction() as tx:
        await tx.deployments.put(_row("standard", DeploymentStatus.READY, 5.0))
        await tx.deployments.put(_row("fast", DeploymentStatus.UNHEALTHY, 5.0, "old"))
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.2):
            await engines_ready(config, sqlite_store, supervisor, started_at=10.0)
    async with sqlite_store.transaction() as tx:
        await tx.deployments.put(_row("fast", DeploymentStatus.UNHEALTHY, 11.0, "no vLLM"))
    with pytest.raises(EngineUnavailable, match="no vLLM"):
        await engines_ready(config, sqlite_store, supervisor, started_at=10.0)
    async with sqlite_store.transaction() as tx:
        await tx.deployments.put(_row("standard", DeploymentStatus.READY, 12.0))
        await tx.deployments.put(_row("fast", DeploymentStatus.READY, 12.0))
    assert len(await engines_ready(config, sqlite_store, supervisor, started_at=10.0)) == 2


async def test_engines_that_a_fleet_left_are_ended(sqlite_store, make_config, fresh_sqlite_url, monkeypatch):
    """Rows with a pid are looked at, each with its port; attached engines are nobody's to end."""
    asked = []

    async def end(pid: int, port: int) -> bool:
        asked.append((pid, port))
        return True

    monkeypatch.setattr(leftovers, "end_leftover", end)
    launched = _row("standard", DeploymentStatus.READY, 5.0).model_copy(update={"pid": 77})
    async with sqlite_store.transaction() as tx:
        await tx.deployments.put(launched)
        await tx.deployments.put(_row("fast", DeploymentStatus.READY, 5.0))
    assert await end_leftover_engines(make_config({"store.url": fresh_sqlite_url})) == 1
    assert asked == [(77, 1)]


async def test_an_unreadable_database_hides_no_error_and_stops_nothing(make_config, tmp_path):
    """Garbage where the database should be means that no engine is known."""
    config = make_config()
    config.data_dir.mkdir()
    (config.data_dir / "hone.db").write_bytes(b"garbage" * 1000)
    assert await end_leftover_engines(config) == 0
