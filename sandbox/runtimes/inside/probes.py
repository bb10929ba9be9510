"""Tries to get out of the box it runs in; prints JSON: probe → what got through (an empty text: nothing).

Given on stdin: JSON with ``canary`` (a host file any user may read), ``readonly``, ``port`` (where the host
listens on 127.0.0.1), ``abstract`` and ``socket_path`` (unix sockets where it listens), ``host_pid`` and
``foreign_uid`` (whether that process is another user's), ``disk_mib`` (0: the sum is not limited) and
``namespaces`` (whether the wall has them).
"""

# ruff: noqa: PTH108, PTH110, PTH118, PTH123, PTH208, S108, T201

import contextlib
import ctypes
import errno
import json
import os
import platform
import socket
import sys
from collections.abc import Callable
from typing import Any

CLONE_NEWUSER = 0x10000000
MS_REMOUNT_BIND = 32 | 4096
AF_VSOCK = 40
SHARED_NUMBERS = {"io_uring_setup": 425, "pidfd_getfd": 438, "fsopen": 430}
NUMBERS = {
    "x86_64": {"ptrace": 101, "keyctl": 250, "bpf": 321, "userfaultfd": 323, "perf_event_open": 298},
    "aarch64": {"ptrace": 117, "keyctl": 219, "bpf": 280, "userfaultfd": 282, "perf_event_open": 241},
}
REFUSALS = (errno.EPERM, errno.ENOSYS)
libc = ctypes.CDLL(None, use_errno=True)
given: "dict[str, Any]" = json.loads(sys.stdin.read())


def identity() -> str:
    """Nobody in the box is root, nor has capabilities or a way to get them."""
    with open("/proc/self/status") as file:
        status = dict(line.rstrip("\n").split(":\t", 1) for line in file if ":\t" in line)
    wanted = {"CapEff": "0" * 16, "CapPrm": "0" * 16, "NoNewPrivs": "1", "Seccomp": "2"}
    if given["namespaces"]:
        wanted["CapBnd"] = "0" * 16
    wrong = [f"{key} is {status.get(key)}" for key, value in wanted.items() if status.get(key) != value]
    return "; ".join([*wrong, *(["uid is 0"] if os.getuid() == 0 else [])])


def environment() -> str:
    """The starter's environment is not seen."""
    try:
        with open("/proc/1/environ", "rb") as file:
            found = file.read()
    except PermissionError:
        return ""
    return f"/proc/1/environ shows {len(found)} bytes" if found and given["namespaces"] else ""


def host_files() -> str:
    """A file of the host that any user may read is not there, nor are the usual secrets."""
    return ", ".join(path for path in (given["canary"], "/etc/shadow", "/root/.") if readable(path))


def readonly() -> str:
    """What is read-only stays so."""
    got = [path for path in (given["readonly"], "/usr", "/etc", "/") if creatable(path)]
    if libc.mount(None, given["readonly"].encode(), None, MS_REMOUNT_BIND, None) == 0:
        got.append("remount")
    return ", ".join(got)


def kernel_settings() -> str:
    """No setting of the host's kernel opens for writing."""
    paths = ("/proc/sys/kernel/core_pattern", "/proc/sysrq-trigger", "/proc/sys/kernel/hostname")
    return ", ".join(path for path in paths if writable(path))


def network() -> str:
    """Neither the host nor anything else can be reached."""
    got = []
    for kind, name in ((socket.SOCK_STREAM, "tcp"), (socket.SOCK_DGRAM, "udp")):
        if reaches(socket.AF_INET, kind, ("127.0.0.1", given["port"])) and (
            kind == socket.SOCK_STREAM or not own_net()
        ):
            got.append(name)
    for address in (f"\0{given['abstract']}", given["socket_path"]):
        if reaches(socket.AF_UNIX, socket.SOCK_STREAM, address):
            got.append(f"unix {address!r}")
    if reaches(AF_VSOCK, socket.SOCK_STREAM, None):
        got.append("vsock")
    return ", ".join(got)


def own_net() -> bool:
    """Whether only a loopback interface is there."""
    with open("/proc/net/dev") as file:
        names = [line.split(":")[0].strip() for line in file if ":" in line]
    return names == ["lo"]


def interfaces() -> str:
    """The network namespace is the box's own."""
    return "" if not given["namespaces"] or own_net() else "the host's network interfaces"


def processes() -> str:
    """No process of the host can be signalled, nor, with namespaces, seen."""
    reached = True
    try:
        os.kill(given["host_pid"], 0)
    except (ProcessLookupError, PermissionError):
        reached = False
    if reached and (given["foreign_uid"] or given["namespaces"]):
        return "a host process can be signalled"
    seen = [name for name in os.listdir("/proc") if name.isdigit()]
    return f"{len(seen)} processes are seen" if given["namespaces"] and len(seen) > 3 else ""


def namespaces() -> str:
    """No new namespace can be made."""
    return "unshare" if libc.unshare(CLONE_NEWUSER) == 0 else ""


def syscalls() -> str:
    """The dangerous calls are refused by the filter, not by chance."""
    numbers = {**SHARED_NUMBERS, **NUMBERS.get(platform.machine(), {})}
    got = []
    for name, number in numbers.items():
        ctypes.set_errno(0)
        if libc.syscall(number, -1, 0, 0, 0, 0) >= 0 or ctypes.get_errno() not in REFUSALS:
            got.append(name)
    return ", ".join(got)


def descriptors() -> str:
    """No descriptor of the host leaked in, and process 1 shows none."""
    own = [name for name in os.listdir("/proc/self/fd") if int(name) > 3]
    try:
        first = os.listdir("/proc/1/fd")
    except (PermissionError, FileNotFoundError):
        first = []
    return f"own {own}, of process 1 {first}" if own or first else ""


def memory_of_agent() -> str:
    """The memory of process 1 cannot be written."""
    return "/proc/1/mem" if writable("/proc/1/mem") else ""


def disk() -> str:
    """Every writable place has a limit."""
    got = []
    for folder in ("/work", "/tmp", "/dev/shm") if given["disk_mib"] else ():
        path = f"{folder}/.fill-{os.getpid()}"
        parts, block = 2, bytes(1 << 20)
        with contextlib.suppress(OSError):  # what is hoped for: the folder is full
            for part in range(parts):
                with open(f"{path}-{part}", "wb", buffering=0) as file:
                    for _ in range(given["disk_mib"] * 3 // 4 + 1):
                        file.write(block)
            got.append(folder)
        for part in range(parts):
            if os.path.exists(f"{path}-{part}"):
                os.unlink(f"{path}-{part}")
    return ", ".join(got)


def readable(path: str) -> bool:
    """Whether a path can be opened or listed."""
    try:
        os.close(os.open(path, os.O_RDONLY))
    except OSError:
        return False
    return True


def writable(path: str) -> bool:
    """Whether a file opens for writing; nothing is written."""
    try:
        os.close(os.open(path, os.O_WRONLY))
    except OSError:
        return False
    return True


def creatable(folder: str) -> bool:
    """Whether a file can be made in a folder."""
    path = os.path.join(folder, ".probe")
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600))
        os.unlink(path)
    except OSError:
        return False
    return True


def reaches(family: int, kind: int, address: Any) -> bool:
    """Whether a socket can be connected; without an address, whether it can be made."""
    try:
        with socket.socket(family, kind) as client:
            client.settimeout(1)
            if address is not None:
                client.connect(address)
    except OSError:
        return False
    return True


PROBES: "dict[str, Callable[[], str]]" = {
    probe.__name__: probe
    for probe in (
        identity,
        environment,
        host_files,
        readonly,
        kernel_settings,
        network,
        interfaces,
        processes,
        namespaces,
        syscalls,
        descriptors,
        memory_of_agent,
        disk,
    )
}
if __name__ == "__main__":
    print(json.dumps({name: probe() for name, probe in PROBES.items()}))
