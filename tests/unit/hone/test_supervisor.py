"""The supervisor brings children back, tells why they die, and leaves none behind."""

import asyncio
import sys
from pathlib import Path

import psutil
import pytest

from core.errors import MachineError
from hone import supervisor as module
from hone.supervisor import Supervisor


@pytest.fixture
def environment(tmp_path):
    """A fake ``hone.processes`` package that comes first on the path."""
    package = tmp_path / "hone" / "processes"
    package.mkdir(parents=True)
    (tmp_path / "hone" / "__init__.py").write_text("")
    (package / "__init__.py").write_text("")
    (package / "steady.py").write_text("import time\nprint('up', flush=True)\ntime.sleep(600)\n")
    (package / "broken.py").write_text("raise SystemExit('the port is taken')\n")
    return {"PYTHONPATH": str(tmp_path), "PATH": str(Path(sys.executable).parent), "PYTHONSAFEPATH": "1"}


async def test_stop_leaves_no_process_behind(environment, tmp_path):
    """After stop() the child is gone."""
    supervisor = Supervisor(environment=environment, log_folder=tmp_path / "logs")
    await supervisor.start("steady")
    pid = supervisor.pids["steady"]
    assert psutil.pid_exists(pid)
    await supervisor.stop()
    assert not psutil.pid_exists(pid)


async def test_a_killed_child_comes_back(environment, tmp_path, monkeypatch):
    """A child that dies is started again under a new pid."""
    monkeypatch.setattr(module, "_RESTART_SECONDS", (0.01,) * 5)
    supervisor = Supervisor(environment=environment, log_folder=tmp_path / "logs")
    await supervisor.start("steady")
    first = supervisor.pids["steady"]
    psutil.Process(first).kill()
    async with asyncio.timeout(10):
        while supervisor.pids["steady"] == first:
            await asyncio.sleep(0.02)
    await supervisor.stop()


async def test_a_child_that_keeps_dying_is_reported_with_its_last_words(environment, tmp_path, monkeypatch):
    """check() raises with the end of the child's log."""
    monkeypatch.setattr(module, "_RESTART_SECONDS", (0.01,) * 3)
    supervisor = Supervisor(environment=environment, log_folder=tmp_path / "logs")
    await supervisor.start("broken")
    with pytest.raises(MachineError, match="the port is taken"):
        async with asyncio.timeout(20):
            while True:
                supervisor.check()
                await asyncio.sleep(0.02)
    await supervisor.stop()


async def test_stop_during_the_back_off_leaves_nothing(environment, tmp_path):
    """A child that waits to be started again is not started any more."""
    supervisor = Supervisor(environment=environment, log_folder=tmp_path / "logs")
    await supervisor.start("broken")
    async with asyncio.timeout(20):
        while not supervisor.deaths:
            await asyncio.sleep(0.02)
    await supervisor.stop()
    await asyncio.sleep(0)
    assert not any(psutil.pid_exists(pid) for pid in supervisor.pids.values())
    assert supervisor.deaths == {"broken": 1}


async def test_children_stop_in_the_given_order(environment, tmp_path, monkeypatch):
    """Those that are named stop first and in that order."""
    stopped = []

    async def stop_child(child):
        stopped.append(child.name)
        child.process.kill()
        await child.process.wait()

    monkeypatch.setattr(module, "_stop_child", stop_child)
    package = Path(environment["PYTHONPATH"]) / "hone" / "processes"
    for name in ("first", "second"):
        (package / f"{name}.py").write_text("import time\ntime.sleep(600)\n")
    supervisor = Supervisor(environment=environment, log_folder=tmp_path / "logs")
    for name in ("first", "steady", "second"):
        await supervisor.start(name)
    await supervisor.stop(("first", "second"))
    assert stopped == ["first", "second", "steady"]


async def test_a_child_that_cannot_be_started_again_is_reported(environment, tmp_path, monkeypatch):
    """An OSError of a restart reaches check()."""
    monkeypatch.setattr(module, "_RESTART_SECONDS", (0.01,) * 5)
    supervisor = Supervisor(environment=environment, log_folder=tmp_path / "logs")
    await supervisor.start("steady")
    monkeypatch.setattr(module.sys, "executable", str(tmp_path / "gone"))
    psutil.Process(supervisor.pids["steady"]).kill()
    with pytest.raises(MachineError, match="cannot be started again"):
        async with asyncio.timeout(20):
            while True:
                supervisor.check()
                await asyncio.sleep(0.02)
    await supervisor.stop()
