"""Looks at host processes through /proc, and waits for their end without threads."""

import asyncio
import os
import signal
from pathlib import Path

_PAGE = os.sysconf("SC_PAGE_SIZE")
_STATM_RESIDENT = 1


def children(pid: int) -> list[int]:
    """The children of a process; none when it is gone."""
    found: list[int] = []
    try:
        for thread in Path(f"/proc/{pid}/task").iterdir():
            found += [int(child) for child in (thread / "children").read_text().split()]
    except (FileNotFoundError, ProcessLookupError):
        return found  # it, or a thread of it, ended while we looked
    return found


def family(pid: int) -> list[int]:
    """A process and everything below it."""
    found: list[int] = []
    queue = [pid]
    while queue:
        current = queue.pop()
        found.append(current)
        queue += children(current)
    return found


def resident_bytes(pid: int) -> int:
    """Resident memory, shared pages included; 0 when the process is gone."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[_STATM_RESIDENT]) * _PAGE
    except (FileNotFoundError, ProcessLookupError, IndexError):
        return 0


def proportional_bytes(pid: int) -> int:
    """Memory with shared pages divided among their users: dear to ask for; 0 when the process is gone."""
    try:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    except (FileNotFoundError, ProcessLookupError):
        return 0
    except PermissionError:
        return resident_bytes(pid)
    return 0


def real_uid(pid: int) -> int:
    """The real user id of a process; raises FileNotFoundError or ProcessLookupError when it has ended."""
    status = Path(f"/proc/{pid}/status").read_text()
    fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    if fields["State"].startswith(("Z", "X")):
        raise ProcessLookupError(pid)
    return int(fields["Uid"].split()[0])


def of_user(uid: int) -> list[int]:
    """Every process of a user that has not ended."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                if real_uid(int(folder.name)) == uid:
                    found.append(int(folder.name))
            except (FileNotFoundError, ProcessLookupError):
                continue
    return found


def threads_of_user(uid: int) -> int:
    """How many processes and threads a user has: what RLIMIT_NPROC counts."""
    total = 0
    for pid in of_user(uid):
        try:
            total += len(list(Path(f"/proc/{pid}/task").iterdir()))
        except (FileNotFoundError, ProcessLookupError):
            continue
    return total


def kill(pid: int) -> None:
    """SIGKILL a process if it is still there."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


async def ended(pidfd: int, timeout_seconds: float) -> bool:
    """Wait until the process behind a pidfd has ended; False when it has not in time."""
    loop = asyncio.get_running_loop()
    done = asyncio.Event()
    loop.add_reader(pidfd, done.set)
    try:
        async with asyncio.timeout(timeout_seconds):
            await done.wait()
    except TimeoutError:
        return False
    finally:
        loop.remove_reader(pidfd)
    return True
