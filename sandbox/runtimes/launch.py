"""The port between a box and the ways of starting one: what a Launcher does, and what it hands back."""

import asyncio
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from core.errors import MachineError, SandboxError
from sandbox.runtimes import processes

_GRACE_SECONDS = 1.0
_GONE_SECONDS = 60.0
_SWEEPS, _SWEEP_SECONDS = 500, 0.02
_MOST_EVIDENCE = 4_096
_INSIDE = Path(__file__).with_name("inside")
_OTHERS_READ = 0o4
_OTHERS_ENTER = 0o1


@dataclass(frozen=True)
class BoxPlace:
    """Where and as whom a box runs."""

    folder: Path
    """A folder on the host for this box alone; its ``readonly`` part exists."""
    uid: int | None
    """The private user id; None: the service's own."""
    disk_mib: int


class BoxProcess:
    """The processes of one box as the host sees them."""

    def __init__(self, popen: "subprocess.Popen[bytes]", errors: int, *, sweep_uid: int | None) -> None:
        self.pid = popen.pid
        self._popen = popen
        self._errors = errors
        self._sweep_uid = sweep_uid
        self._outer = os.pidfd_open(popen.pid)
        self._inner: int | None = None
        self._inner_pid: int | None = None

    def locate(self) -> list[int]:
        """Find the processes once the agent has reported; returns them, outermost first."""
        found = processes.family(self.pid)
        if len(found) > 1 and self._inner is None:
            self._inner_pid = found[-1]
            self._inner = os.pidfd_open(self._inner_pid)
        return found

    @property
    def agent_pid(self) -> int:
        """The agent's process id on the host."""
        return self._inner_pid or self.pid

    @property
    def running(self) -> bool:
        """Whether the outermost process lives."""
        return self._popen.poll() is None

    def kill(self) -> None:
        """Start the end of the box; does not wait.

        Under bubblewrap the agent is process 1 of a pid namespace: the kernel kills everything with it.
        """
        if self._inner is not None:
            try:
                signal.pidfd_send_signal(self._inner, signal.SIGKILL)
            except ProcessLookupError:
                return  # it has ended

    async def gone(self) -> None:
        """Wait until nothing of the box is left, killing harder when it lasts; then free what was held.

        Raises SandboxError when the kernel does not let a process go.
        """
        if not await processes.ended(self._outer, _GRACE_SECONDS):
            for pid in processes.family(self.pid):
                processes.kill(pid)
        gone = await processes.ended(self._outer, _GONE_SECONDS)
        self._popen.poll()
        if self._inner is not None:
            gone = await processes.ended(self._inner, _GONE_SECONDS) and gone
        if self._sweep_uid is not None:
            gone = await self._sweep(self._sweep_uid) and gone
        if not gone:
            raise SandboxError(f"process {self.pid} of a box does not end")

    async def _sweep(self, uid: int) -> bool:
        """Kill what outlived an agent that the code had killed: everything of the box's private uid."""
        for _ in range(_SWEEPS):
            left = processes.of_user(uid)
            if not left:
                return True
            for pid in left:
                processes.kill(pid)
            await asyncio.sleep(_SWEEP_SECONDS)
        return False

    def evidence(self) -> str:
        """What the outer program wrote to its stderr, and its exit code if it has ended."""
        size = os.fstat(self._errors).st_size
        text = os.pread(self._errors, _MOST_EVIDENCE, max(0, size - _MOST_EVIDENCE)).decode(errors="replace").strip()
        code = self._popen.poll()
        return "; ".join(part for part in (text, "" if code is None else f"exit code {code}") if part)

    def free(self) -> None:
        """Close the descriptors; after ``gone``."""
        os.close(self._outer)
        os.close(self._errors)
        if self._inner is not None:
            os.close(self._inner)


class Launcher(Protocol):
    """Starts the agent behind one kind of wall."""

    name: str
    work_folder: str | None
    """As seen inside; None: the box's own folder on the host."""
    readonly_folder: str | None
    enforced: tuple[str, ...]
    """What the wall itself enforces, without memory and what the box does (wall time, output)."""
    shared_uid: bool
    """Whether boxes count processes together with the rest of the service's user."""
    agent_exposed: bool
    """Whether code in the box can kill the agent: its death is then the code's doing."""

    def prepare(self, scratch: Path) -> None:
        """Check the programs, lay out what all boxes share. Raises MachineError or SandboxError."""

    def launch(self, place: BoxPlace, control: socket.socket) -> BoxProcess:
        """Start one box whose agent finds ``control`` as descriptor 0."""

    def command_path(self) -> str:
        """PATH inside."""


def spawn(
    argv: Sequence[str],
    control: socket.socket,
    *,
    uid: int | None,
    pass_fds: Sequence[int] = (),
    sweep: bool = False,
) -> BoxProcess:
    """Start a program with an empty environment, as ``uid`` without groups or capabilities.

    ``sweep``: at the end, everything of ``uid`` is killed, for walls without a pid namespace.
    Raises SandboxError.
    """
    if uid is not None:
        identity = (
            f"--reuid={uid}",
            f"--regid={uid}",
            "--clear-groups",
            "--bounding-set=-all",
            "--inh-caps=-all",
        )
        argv = [find_program("setpriv"), *identity, "--no-new-privs", "--", *argv]
    errors = os.memfd_create("hone-errors", os.MFD_CLOEXEC)
    try:
        popen = subprocess.Popen(
            argv,
            stdin=control.fileno(),
            stdout=subprocess.DEVNULL,
            stderr=errors,
            env={},
            cwd="/",
            pass_fds=tuple(pass_fds),
            start_new_session=True,
        )
    except OSError as error:
        os.close(errors)
        raise SandboxError(f"{argv[0]} does not start: {error}") from error
    return BoxProcess(popen, errors, sweep_uid=uid if sweep else None)


def find_program(name: str) -> str:
    """The absolute path of a program; raises MachineError with advice."""
    found = shutil.which(name)
    if found is None:
        packages = {"bwrap": "bubblewrap", "setpriv": "util-linux"}
        raise MachineError(f"{name} is not on PATH", hint=f"install {packages.get(name, name)}")
    return found


def sandbox_python() -> tuple[str, tuple[str, ...]]:
    """An interpreter that any user may run, and the folders outside /usr that it needs.

    The system's own is preferred: it lies where every box can see it. Raises MachineError.
    """
    candidates = [Path("/usr/bin/python3"), Path("/usr/local/bin/python3")]
    if not sys.base_prefix.startswith("/usr"):
        candidates.append(Path(sys.base_prefix) / "bin" / "python3")
    for candidate in candidates:
        real = candidate.resolve()
        if real.is_file() and _open_to_all(real):
            outside = () if real.is_relative_to("/usr") else (str(real.parent.parent),)
            return str(candidate if not outside else real), outside
    raise MachineError(
        "no Python interpreter that an unprivileged user may run",
        hint="install the system's python3; one below a private home folder cannot be used in boxes",
    )


def share_agent(scratch: Path) -> Path:
    """Copy the programs that run inside boxes to where every user may read them."""
    target = scratch / "inside"
    target.mkdir(mode=0o755)
    for source in _INSIDE.glob("*.py"):
        copy = target / source.name
        copy.write_bytes(source.read_bytes())
        copy.chmod(0o644)
    target.chmod(0o755)
    return target


def _open_to_all(path: Path) -> bool:
    folders = all(parent.stat().st_mode & _OTHERS_ENTER for parent in path.parents)
    return folders and bool(path.stat().st_mode & _OTHERS_READ) and bool(path.stat().st_mode & _OTHERS_ENTER)
