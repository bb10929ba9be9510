"""The isolating wall: bubblewrap, always below an unprivileged uid, with its environment empty.

Why these flags, and which hole each one closes, was measured: capabilities kept by uid 0 remount read-only
binds (containers/bubblewrap#287) and open core_pattern, so boxes never run as root and drop every capability;
process 1 shows the environment of its starter, so that is empty; a tmpfs has no limit unless it gets one.
"""

import json
import os
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from core.errors import MachineError
from sandbox.runtimes.channel import sealed
from sandbox.runtimes.launch import BoxPlace, BoxProcess, find_program, sandbox_python, share_agent, spawn
from sandbox.runtimes.seccomp import deny_list

WORK, READONLY = "/work", "/readonly"
_MIB = 1 << 20
_UID_INSIDE = "1000"
_SYSTEM_FOLDERS = ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
_SYSTEM_FILES = ("/etc/alternatives", "/etc/ld.so.cache", "/etc/localtime")
_MASKED = ("/proc/kallsyms", "/proc/cmdline", "/proc/keys", "/proc/timer_list")
_PASSWD = f"box:x:{_UID_INSIDE}:{_UID_INSIDE}::{WORK}:/bin/sh\n"
_GROUP = f"box:x:{_UID_INSIDE}:\n"


@dataclass(frozen=True)
class Layout:
    """What goes into the file system of a box."""

    inside: Path
    """Folder of the agent, with ``passwd`` and ``group``."""
    readonly: Path
    python: str
    python_folders: tuple[str, ...]
    disk_mib: int


Arguments = Callable[[Layout, int], list[str]]


def bwrap_arguments(layout: Layout, seccomp: int) -> list[str]:
    """The fixed flags; ``seccomp`` is the descriptor of the system-call filter."""
    size = str(layout.disk_mib * _MIB)
    return [
        *("--unshare-all", "--unshare-user", "--disable-userns", "--cap-drop", "ALL"),
        *("--die-with-parent", "--new-session", "--as-pid-1", "--clearenv"),
        *("--uid", _UID_INSIDE, "--gid", _UID_INSIDE, "--hostname", "box"),
        *("--ro-bind", "/usr", "/usr"),
        *_system_binds(),
        *(flag for folder in layout.python_folders for flag in ("--ro-bind", folder, folder)),
        *("--ro-bind", str(layout.inside / "passwd"), "/etc/passwd"),
        *("--ro-bind", str(layout.inside / "group"), "/etc/group"),
        *("--proc", "/proc", "--ro-bind", "/proc/sys", "/proc/sys"),
        *(flag for path in _MASKED if Path(path).exists() for flag in ("--ro-bind", "/dev/null", path)),
        *("--dev", "/dev", "--size", size, "--tmpfs", "/dev/shm", "--remount-ro", "/dev"),  # noqa: S108 - inside the box
        *("--perms", "1777", "--size", size, "--tmpfs", "/tmp"),  # noqa: S108 - inside the box
        *("--perms", "0700", "--size", size, "--tmpfs", WORK),
        *("--ro-bind", str(layout.readonly), READONLY),
        *("--ro-bind", str(layout.inside / "agent.py"), "/hone/agent.py"),
        *("--remount-ro", "/", "--chdir", WORK, "--seccomp", str(seccomp)),
    ]


class BubblewrapLauncher:
    """Starts boxes in user, mount, pid, network, ipc, uts and cgroup namespaces of their own."""

    name = "bubblewrap"
    work_folder: str | None = WORK
    readonly_folder: str | None = READONLY
    agent_exposed = False
    shared_uid = False
    enforced: tuple[str, ...] = (
        "files:mount_namespace",
        "processes:pid_namespace",
        "network:net_namespace",
        "process_count:rlimit",
        "disk:tmpfs",
        "syscalls:seccomp",
        "capabilities:none",
        "nested_namespaces:none",
    )

    def __init__(self, *, bwrap: str = "bwrap", arguments: Arguments = bwrap_arguments) -> None:
        """``arguments`` builds the flags; another one than the fixed set only to test the self-test."""
        self._bwrap = bwrap
        self._arguments = arguments

    def prepare(self, scratch: Path) -> None:
        """Find the programs and lay out what boxes share. Raises MachineError."""
        self._program = find_program(self._bwrap)
        self._python, self._python_folders = sandbox_python()
        self._filter = deny_list()
        self._inside = share_agent(scratch)
        for name, text in (("passwd", _PASSWD), ("group", _GROUP)):
            (self._inside / name).write_text(text)
            (self._inside / name).chmod(0o644)
        if os.getuid() == 0:
            find_program("setpriv")

    def launch(self, place: BoxPlace, control: socket.socket) -> BoxProcess:
        """Start one box; as root its uid must be a private one."""
        if place.uid is None and os.getuid() == 0:
            raise MachineError("a box never runs as root")
        layout = Layout(
            inside=self._inside,
            readonly=place.folder / "readonly",
            python=self._python,
            python_folders=self._python_folders,
            disk_mib=place.disk_mib,
        )
        agent = (self._python, "-I", "-X", "utf8", "/hone/agent.py", json.dumps({"work": WORK}))
        with sealed(self._filter) as seccomp:
            argv: Sequence[str] = [self._program, *self._arguments(layout, seccomp), "--", *agent]
            return spawn(argv, control, uid=place.uid, pass_fds=(seccomp,))

    def command_path(self) -> str:
        """PATH inside."""
        return ":".join([*(f"{folder}/bin" for folder in self._python_folders), "/usr/local/bin", "/usr/bin", "/bin"])


def _system_binds() -> list[str]:
    flags: list[str] = []
    for folder in map(Path, _SYSTEM_FOLDERS):
        if folder.is_symlink():
            flags += ["--symlink", str(folder.readlink()), str(folder)]
        elif folder.is_dir():
            flags += ["--ro-bind", str(folder), str(folder)]
    for file in _SYSTEM_FILES:
        flags += ["--ro-bind-try", file, file]
    return flags
