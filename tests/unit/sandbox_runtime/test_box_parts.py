"""The parts of a box that need no box: specs, pipes, messages, identities, memory groups, paths inside."""

import asyncio
import os
import socket
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from sandbox.runtimes.base import BoxSpec, ExecResult, Outcome
from sandbox.runtimes.capture import Capture
from sandbox.runtimes.channel import Channel, ChannelClosed, sealed
from sandbox.runtimes.identities import lease_identity
from sandbox.runtimes.inside.agent import open_beneath, split_beneath
from sandbox.runtimes.launch import sandbox_python
from sandbox.runtimes.memory import Watcher, WatcherGuards, detect_guards


@pytest.mark.parametrize("path", ["/etc/passwd", "../x", "a/../../x", "", "a//b", "a\0b", "a/"])
def test_spec_paths_stay_below(path: str) -> None:
    """A file of a spec can be laid nowhere but below its folder."""
    for field in ("files", "readonly_files"):
        with pytest.raises(ValidationError):
            BoxSpec(**{field: {path: "x"}})


@settings(deadline=None, max_examples=50, suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from(sorted(Outcome)))
def test_only_two_outcomes_are_infrastructure(outcome: Outcome) -> None:
    """Every other outcome is something the code did, and can be judged."""
    result = ExecResult(outcome=outcome)
    assert result.infrastructure == (outcome in (Outcome.START_FAILED, Outcome.INFRA_ERROR))
    assert result.ok == (outcome is Outcome.OK)


@settings(deadline=None, max_examples=50, suppress_health_check=[HealthCheck.too_slow])
@given(st.text())
def test_paths_inside_never_climb(path: str) -> None:
    """A path is refused or has only plain parts."""
    try:
        parts = split_beneath(path)
    except PermissionError:
        return
    assert all(part not in ("", ".", "..") and "/" not in part for part in parts)


def test_open_beneath_follows_nothing(tmp_path: Path) -> None:
    """Links, FIFOs and folders are refused at once, whichever way they are opened."""
    (tmp_path / "real").mkdir()
    (tmp_path / "secret").write_text("x")
    work = tmp_path / "work"
    work.mkdir()
    (work / "link").symlink_to(tmp_path / "secret")
    (work / "folder").symlink_to(tmp_path / "real")
    os.mkfifo(work / "pipe")
    for path in ("link", "folder/x", "pipe", "../secret", "."):
        for create in (False, True):
            with pytest.raises(OSError):
                open_beneath(str(work), path, create=create)
    assert (tmp_path / "secret").read_text() == "x"
    assert list((tmp_path / "real").iterdir()) == []


async def test_capture_keeps_the_beginning_and_reports_a_flood() -> None:
    """Only the first bytes are kept, the flood is told once, and the rest is drained."""
    told: list[int] = []
    with Capture(keep=10, flood=100, on_flood=lambda: told.append(1)) as capture:
        await asyncio.to_thread(os.write, capture.write_end, b"abc" * 1000)
        capture.handed_over()
        assert await capture.drain(5)
    assert capture.data == b"abcabcabca"
    assert capture.truncated
    assert told == [1]


async def test_capture_gives_up_on_a_pipe_that_stays_open() -> None:
    """A holder of the write end cannot make the reader wait for ever."""
    with Capture(keep=10) as capture:
        assert not await capture.drain(0.01)


def test_sealed_memory_cannot_be_changed() -> None:
    """Whoever receives the descriptor can read it and do nothing else."""
    with sealed(b"hello") as descriptor:
        assert os.read(descriptor, 10) == b"hello"
        with pytest.raises(PermissionError):
            os.write(descriptor, b"x")
        with pytest.raises(PermissionError):
            os.ftruncate(descriptor, 100)


async def test_channel_refuses_what_is_no_reply() -> None:
    """Garbage, other JSON and the end of the socket are ChannelClosed, never another error."""
    for packet in (b"\xff garbage", b"[1]", None):
        host, inside = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        channel = Channel(host)
        if packet is not None:
            inside.send(packet)
        else:
            inside.close()
        with pytest.raises(ChannelClosed):
            await channel.receive()
        inside.close()
        with pytest.raises(ChannelClosed):
            channel.send({"op": "run"})
        channel.interrupt()
        channel.shut()
        channel.close()


def test_identities_are_unique_until_released() -> None:
    """Two leases never share an id, and a released id comes back; without root there is none."""
    first, second = lease_identity(61_900), lease_identity(61_900)
    if os.getuid() != 0:
        assert first.uid is second.uid is None
        return
    assert first.uid is not None and second.uid is not None and first.uid < second.uid
    first.release()
    again = lease_identity(61_900)
    assert again.uid == first.uid
    again.release()
    second.release()


def test_sandbox_python_is_open_to_all() -> None:
    """The interpreter lies where an unprivileged user can reach it."""
    program, folders = sandbox_python()
    for parent in Path(program).resolve().parents:
        assert parent.stat().st_mode & 0o1
    assert folders == () or not program.startswith("/usr")


def test_watcher_adds_up_the_family() -> None:
    """The watcher compares the sum of this process and its children with the limit."""
    watcher = Watcher(os.getpid())
    watcher.limit(1, 1)
    assert watcher.exceeded()
    watcher.limit(1 << 20, 1)
    assert not watcher.exceeded()


def fake_host(tmp_path: Path, *, kind: str, files: dict[str, str]) -> tuple[Path, Path]:
    """A /proc/self and a root folder of a host with one cgroup hierarchy."""
    proc, group = tmp_path / "proc", tmp_path / "root" / "cg" / "svc"
    proc.mkdir()
    group.mkdir(parents=True)
    controllers = "" if kind == "cgroup2" else "memory"
    (proc / "cgroup").write_text(f"4:{controllers}:/svc\n1:cpu:/\n")
    (proc / "mountinfo").write_text(f"30 25 0:26 / /cg rw - {kind} cgroup rw,{controllers or 'nsdelegate'}\n")
    for name, text in files.items():
        (group / name).write_text(text)
    return proc, tmp_path / "root"


@pytest.mark.parametrize(
    ("kind", "files"),
    [
        ("cgroup2", {"cgroup.controllers": "cpu io\n", "cgroup.subtree_control": ""}),
        ("cgroup2", {}),
        ("tmpfs", {}),
        ("cgroup", {}),
    ],
    ids=["v2-without-memory", "v2-empty", "none", "v1-that-cannot-be-limited"],
)
def test_hosts_without_a_memory_group_get_a_watcher(tmp_path: Path, kind: str, files: dict[str, str]) -> None:
    """Where no group can be made and limited the watcher is chosen, and nothing is left behind."""
    proc, root = fake_host(tmp_path, kind=kind, files=files)
    assert isinstance(detect_guards(proc, root), WatcherGuards)


def test_no_cgroup_at_all(tmp_path: Path) -> None:
    """A host without /proc/self/cgroup gets a watcher."""
    assert detect_guards(tmp_path, tmp_path).name == "watcher"
