"""One real stack for all end-to-end tests: vLLM on the CPU in both Variants, gateway, fleet, worker, learner.

Every part is a process of its own, started as ``hone up`` starts it. Starting takes one to two minutes.
"""

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from openai import AsyncOpenAI

from core.config.schema import HoneConfig
from core.job import Job, JobStatus
from core.policy import PolicyVersion, ServingStatus
from hone.admin_client import AdminClient
from hone.local_keys import read_local_keys
from hone.opened_store import opened_store
from hone.settings import child_environment, load_settings
from hone.training import request_run
from hone.up import prepare
from sandbox.domains.registry import domain_source
from serving.ports import free_port

PROCESSES = ("gateway", "fleet", "worker", "learner")
DOMAIN = "python_tool"
POLICY = "coder"
START_SECONDS = 420.0


@dataclass
class Stack:
    """A running Hone and the ways to talk to it."""

    config: HoneConfig
    processes: dict[str, subprocess.Popen[bytes]]
    engines: dict[str, str]
    """Variant → the engine's own URL."""

    @property
    def base(self) -> str:
        """The Base's name."""
        return self.config.base.name

    def admin(self) -> AdminClient:
        """The admin API with the local admin key."""
        return AdminClient(gateway_url=self.config.gateway_url, api_key=read_local_keys(self.config).admin)

    def client(self, **options: Any) -> AsyncOpenAI:
        """The ordinary client with the worker's key, whose Turns may train."""
        return AsyncOpenAI(
            base_url=f"{self.config.gateway_url}/v1",
            api_key=read_local_keys(self.config).worker,
            **({"max_retries": 0, "timeout": 120.0} | options),
        )

    def start(self, name: str) -> None:
        """Start one process; its log is appended to."""
        folder = self.config.data_dir / "logs"
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                [sys.executable, "-m", f"hone.processes.{name}"],
                env=child_environment(self.config),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def stop(self) -> None:
        """End every process, and what they started, by pid."""
        families = [
            member
            for process in self.processes.values()
            if process.poll() is None
            for member in [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
        ]
        for process in reversed(self.processes.values()):
            process.terminate()
        _, alive = psutil.wait_procs(families, timeout=40)
        for member in alive:
            member.kill()

    def logs(self) -> str:
        """The ends of all logs, for a failure's message."""
        return "\n".join(
            f"== {path.name}\n" + "\n".join(path.read_text(errors="replace").splitlines()[-6:])
            for path in sorted((self.config.data_dir / "logs").glob("*.log"))
        )

    async def finished(self, job: Job, *, seconds: float = 240.0) -> Job:
        """Wait for a job's end; fails the test when it died."""
        async with asyncio.timeout(seconds), opened_store(self.config) as store:
            while True:
                job = await store.queue.get(job.id)
                if job.status is JobStatus.DONE:
                    return job
                if job.status in {JobStatus.DEAD, JobStatus.CANCELLED}:
                    pytest.fail(f"job {job.kind} died: {job.error}\n{self.logs()}")
                await asyncio.sleep(0.2)

    async def warm_up(self, policy: str, *, seed: int, steps: int = 2) -> PolicyVersion:
        """A new live version of ``policy``: a short SFT run of the real learner."""
        async with opened_store(self.config) as store:
            overrides = {"sft_learning_rate": 1e-3, "sft_batch": 4}
            run_id, job = await request_run(
                store,
                policy=policy,
                algorithm="sft",
                domains=(DOMAIN,),
                steps=steps,
                start_version=0,
                seed=seed,
                overrides=overrides,
            )
            await self.finished(job)
            async with store.reading() as tx:
                run = await tx.runs.get(run_id)
            return await self.served(policy, run.steps[-1].version)

    async def served(self, policy: str, version: int, *, seconds: float = 60.0) -> PolicyVersion:
        """Wait until a version is live or refused."""
        async with asyncio.timeout(seconds), opened_store(self.config) as store:
            while True:
                async with store.reading() as tx:
                    stored = await tx.versions.get(policy, version)
                if stored.serving in {ServingStatus.LIVE, ServingStatus.REFUSED}:
                    return stored
                await asyncio.sleep(0.1)

    async def pin(self, version: PolicyVersion) -> None:
        """Keep a version loaded whatever else is published."""
        async with opened_store(self.config) as store, store.transaction() as tx:
            stored = await tx.versions.get(version.policy, version.version)
            await tx.versions.update(stored.model_copy(update={"pins": (*stored.pins, "test")}))


@pytest.fixture(scope="session")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """Everything, ready, with a Policy and Tasks."""
    folder = tmp_path_factory.mktemp("stack")
    overrides = {
        "data_dir": str(folder),
        "gateway.port": free_port("127.0.0.1"),
        "fleet.first_port": 0,
        "fleet.metrics_port": 0,
        "worker.metrics_port": 0,
        "worker.tools_port": 0,
        "learner.metrics_port": 0,
        "worker.lease_seconds": 4.0,
        "fleet.drain_seconds": 2.0,
        # On a busy machine speeds are noise; tests ask for a Variant and expect it.
        "fleet.speculation_switch": False,
        "fleet.sameness_seconds": 0.0,
    }
    config = load_settings(overrides=overrides)
    asyncio.run(prepare(config, lambda _: None))
    asyncio.run(_add_tasks(config))
    running = Stack(config=config, processes={}, engines={})
    try:
        for name in PROCESSES:
            running.start(name)
        _wait(running, lambda: httpx.get(f"{config.gateway_url}/health").status_code == 200, 60.0)
        _wait(running, lambda: _engines(running), START_SECONDS)
        with running.admin() as admin:
            admin.post("/policies", {"name": POLICY, "base": config.base.name, "release_policy": "demo"})
        yield running
    finally:
        running.stop()


async def _add_tasks(config: HoneConfig) -> None:
    source = domain_source(DOMAIN)
    async with opened_store(config) as store, store.transaction() as tx:
        for split, count in (("warmup", 32), ("train", 32), ("heldout", 16)):
            await tx.tasks.add_many(source.generate(split, count, 0))


def _engines(running: Stack) -> bool:
    with running.admin() as admin:
        ready = [item for item in admin.get("/deployments") if item["status"] == "ready"]
    running.engines = {item["variant"]: item["url"] for item in ready}
    return set(running.engines) == {"standard", "fast"}


def _wait(running: Stack, holds: Callable[[], bool], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        dead = [name for name, process in running.processes.items() if process.poll() is not None]
        if dead:
            pytest.fail(f"{dead} died at start\n{running.logs()}")
        try:
            if holds():
                return
        except (httpx.TransportError, json.JSONDecodeError):
            time.sleep(0.5)
            continue
        time.sleep(0.5)
    pytest.fail(f"the stack did not come up in {seconds:.0f} s\n{running.logs()}")


@pytest.fixture(scope="session")
def trained(stack: Stack) -> PolicyVersion:
    """A live, pinned version of the Policy, made by the learner from demonstrations."""

    async def make() -> PolicyVersion:
        version = await stack.warm_up(POLICY, seed=1, steps=8)
        assert version.serving is ServingStatus.LIVE, version.serving_reason
        await stack.pin(version)
        return version

    return asyncio.run(make())


@pytest.fixture
def checkpoint_folder(stack: Stack, trained: PolicyVersion) -> Path:
    """The adapter of the trained version."""

    async def find() -> Path:
        async with opened_store(stack.config) as store, store.reading() as tx:
            return Path((await tx.checkpoints.for_version(trained.policy, trained.version)).path)

    return asyncio.run(find())
