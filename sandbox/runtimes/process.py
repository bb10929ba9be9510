"""The weaker wall, used only when chosen by name: landlock, seccomp, rlimits and a uid of the box's own.

For hosts that forbid user namespaces. Missing against bubblewrap: a pid namespace (code sees the host's
process list and can kill its own agent), a network namespace (sockets are refused by the system-call filter
instead), and a limit on the sum of what is written to disk.
"""

import json
import os
import socket
from pathlib import Path

from core.errors import MachineError
from sandbox.runtimes.launch import BoxPlace, BoxProcess, find_program, sandbox_python, share_agent, spawn
from sandbox.runtimes.seccomp import deny_list

_READABLE = (
    "/usr",
    "/bin",
    "/sbin",
    "/lib",
    "/lib32",
    "/lib64",
    "/etc/alternatives",
    "/etc/ld.so.cache",
    "/etc/localtime",
    "/etc/passwd",
    "/etc/group",
    "/proc",
    "/dev/urandom",
    "/dev/random",
    "/dev/zero",
)


class ProcessLauncher:
    """Starts boxes as plain processes behind landlock and seccomp."""

    name = "process"
    work_folder: str | None = None
    readonly_folder: str | None = None
    agent_exposed = True

    def __init__(self) -> None:
        own_uid = os.getuid() == 0
        self.shared_uid = not own_uid
        self.enforced: tuple[str, ...] = (
            "files:landlock",
            "network:seccomp",
            "process_count:rlimit" if own_uid else "process_count:rlimit_shared_with_own_user",
            "disk:per_file",
            "syscalls:seccomp",
            *(("processes:own_uid",) if own_uid else ()),
        )

    def prepare(self, scratch: Path) -> None:
        """Find the programs and lay out what boxes share. Raises MachineError."""
        self._python, self._python_folders = sandbox_python()
        self._filter = deny_list(sockets=False)
        self._inside = share_agent(scratch)
        if os.getuid() == 0:
            find_program("setpriv")

    def launch(self, place: BoxPlace, control: socket.socket) -> BoxProcess:
        """Start one box; as root its uid must be a private one."""
        if place.uid is None and os.getuid() == 0:
            raise MachineError("a box never runs as root")
        work, temporary = place.folder / "work", place.folder / "tmp"
        for folder in (work, temporary):
            folder.mkdir(mode=0o700)
            if place.uid is not None:
                os.chown(folder, place.uid, place.uid)
        walls = {
            "read": [*_READABLE, *self._python_folders, str(self._inside), str(place.folder / "readonly")],
            "write": [str(work), str(temporary), "/dev/null"],
            "seccomp": self._filter.hex(),
        }
        interpreter = (self._python, "-I", "-X", "utf8")
        argv = [
            *(*interpreter, str(self._inside / "confine.py"), json.dumps(walls)),
            *(
                *interpreter,
                str(self._inside / "agent.py"),
                json.dumps({"work": str(work), "own_uid": place.uid}),
            ),
        ]
        return spawn(argv, control, uid=place.uid, sweep=True)

    def command_path(self) -> str:
        """PATH inside."""
        return ":".join([*(f"{folder}/bin" for folder in self._python_folders), "/usr/local/bin", "/usr/bin", "/bin"])
