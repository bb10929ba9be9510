"""The limit on the memory of a whole box: a memory cgroup where the host gives one, else a watcher.

A cgroup counts everything, files in the box's tmpfs included, and the kernel enforces it. The watcher adds up
what the box's processes hold and asks for a kill; between two looks a box can pass its limit for a moment.
Sources: the kernel's admin-guide/cgroup-v1/memory and admin-guide/cgroup-v2.
"""

import os
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import structlog

from sandbox.runtimes.processes import family, proportional_bytes, resident_bytes

log = structlog.get_logger(__name__)

_MIB = 1 << 20
_PREFIX = "hone-box-"
_SPARE_TASKS = 8


class MemoryGuard(Protocol):
    """Limits one box."""

    name: str

    def limit(self, memory_mib: int, max_processes: int) -> None:
        """Set or change the limit."""

    def begin(self) -> None:
        """A command starts: what earlier ones did no longer counts."""

    def exceeded(self) -> bool:
        """Whether the running command has passed the limit."""

    def close(self) -> None:
        """Forget the box; every process of it is gone."""


class Guards(Protocol):
    """Makes a guard for each box, in the one way that this host allows."""

    name: str

    def guard(self, root_pid: int, pids: Sequence[int]) -> MemoryGuard:
        """Guard the box whose outermost process is ``root_pid``; ``pids`` are its present processes."""


class Watcher:
    """Adds up the memory of a box's processes whenever it is asked."""

    name = "watcher"

    def __init__(self, root_pid: int) -> None:
        self._root = root_pid
        self._limit = 0

    def limit(self, memory_mib: int, max_processes: int) -> None:
        """Set or change the limit; processes are limited elsewhere."""
        self._limit = memory_mib * _MIB

    def begin(self) -> None:
        """Nothing is kept between commands."""

    def exceeded(self) -> bool:
        """Whether the sum is above the limit now; shared pages are counted once."""
        pids = family(self._root)
        if sum(resident_bytes(pid) for pid in pids) <= self._limit:
            return False
        return sum(proportional_bytes(pid) for pid in pids) > self._limit

    def close(self) -> None:
        """Nothing is held."""


class WatcherGuards:
    """The way that works everywhere."""

    name = Watcher.name

    def guard(self, root_pid: int, pids: Sequence[int]) -> MemoryGuard:
        """A watcher for one box."""
        return Watcher(root_pid)


@dataclass(frozen=True)
class CgroupFiles:
    """The names that differ between cgroup v1 and v2."""

    name: str
    limit: str
    swap: str
    events: str
    group_kill: str | None


V1 = CgroupFiles("cgroup_v1", "memory.limit_in_bytes", "memory.memsw.limit_in_bytes", "memory.oom_control", None)
V2 = CgroupFiles("cgroup_v2", "memory.max", "memory.swap.max", "memory.events", "memory.oom.group")


class Cgroup:
    """One memory group; raises OSError from the kernel's answers."""

    def __init__(self, folder: Path, files: CgroupFiles) -> None:
        self.name = files.name
        self._folder = folder
        self._files = files
        self._kills_before = 0

    def limit(self, memory_mib: int, max_processes: int) -> None:
        """Set or change the limit of memory, of swap where it is counted, and (v2) of processes."""
        size = str(memory_mib * _MIB)
        (self._folder / self._files.limit).write_text(size)
        swap = self._folder / self._files.swap
        if swap.exists():
            swap.write_text("0" if self._files is V2 else size)
        tasks = self._folder / "pids.max"
        if tasks.exists():
            tasks.write_text(str(max_processes + _SPARE_TASKS))
        self.begin()

    def begin(self) -> None:
        """Count kills from now on."""
        self._kills_before = self._kills()

    def exceeded(self) -> bool:
        """Whether the kernel has killed something in the group for the running command."""
        return self._kills() > self._kills_before

    def close(self) -> None:
        """Remove the empty group."""
        self._folder.rmdir()

    def _kills(self) -> int:
        for line in (self._folder / self._files.events).read_text().splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
        return 0


class CgroupGuards:
    """Makes groups below ``parent``, named by this process so that a later one can clear them away."""

    def __init__(self, parent: Path, files: CgroupFiles) -> None:
        self.name = files.name
        self._parent = parent
        self._files = files
        self._token = secrets.token_hex(3)  # one process may have several runtimes
        self._count = 0

    def guard(self, root_pid: int, pids: Sequence[int]) -> MemoryGuard:
        """A group that holds ``pids``; whatever they start later is in it too."""
        self._count += 1
        folder = self._parent / f"{_PREFIX}{os.getpid()}-{self._token}-{self._count}"
        folder.mkdir()
        for pid in pids:
            (folder / "cgroup.procs").write_text(str(pid))
        return Cgroup(folder, self._files)

    def clear_stale(self) -> None:
        """Remove the empty groups of services that died without doing it."""
        for folder in self._parent.glob(f"{_PREFIX}*"):
            owner = folder.name.removeprefix(_PREFIX).partition("-")[0]
            if not Path(f"/proc/{owner}").exists():
                try:
                    folder.rmdir()
                except OSError as error:
                    log.warning("stale_cgroup_left", folder=str(folder), error=str(error))


def detect_guards(proc: Path = Path("/proc/self"), root: Path = Path("/")) -> Guards:
    """The strongest way that this host allows, proved by making and removing a group.

    ``root`` is put before every mount point: another folder only for tests.
    """
    for candidate in (_find_v2(proc, root), _find_v1(proc, root)):
        if candidate is not None and _usable(candidate):
            return candidate
    return WatcherGuards()


def _usable(guards: CgroupGuards) -> bool:
    try:
        guards.clear_stale()
        trial = guards.guard(os.getpid(), ())
        trial.limit(64, 64)
        trial.close()
    except OSError as error:
        log.info("cgroup_not_usable", kind=guards.name, error=str(error))
        return False
    return True


def _find_v2(proc: Path, root: Path) -> CgroupGuards | None:
    """A delegated v2 group: writable, with the memory controller. This process moves to a leaf of it."""
    own = _own_group(proc, root, kind="cgroup2", controller="")
    if own is None or not os.access(own, os.W_OK):
        return None
    try:
        if "memory" not in (own / "cgroup.controllers").read_text().split():
            return None
        if "memory" not in (own / "cgroup.subtree_control").read_text().split():
            # A group with processes cannot hand controllers down, so this process steps aside first.
            leaf = own / "hone-service"
            leaf.mkdir(exist_ok=True)
            (leaf / "cgroup.procs").write_text(str(os.getpid()))
            (own / "cgroup.subtree_control").write_text("+memory +pids")
    except OSError as error:
        log.info("cgroup_not_delegated", folder=str(own), error=str(error))
        return None
    return CgroupGuards(own, V2)


def _find_v1(proc: Path, root: Path) -> CgroupGuards | None:
    own = _own_group(proc, root, kind="cgroup", controller="memory")
    if own is None or not os.access(own, os.W_OK):
        return None
    return CgroupGuards(own, V1)


def _own_group(proc: Path, root: Path, *, kind: str, controller: str) -> Path | None:
    """The folder of this process's group: where the hierarchy is mounted + the path within it."""
    inside = None
    for line in _lines(proc / "cgroup"):
        _, controllers, path = line.split(":", 2)
        if (controller in controllers.split(",")) if controller else not controllers:
            inside = path
    if inside is None:
        return None
    for line in _lines(proc / "mountinfo"):
        before, _, after = line.partition(" - ")
        found_kind, _, options = after.split(" ", 2)
        if found_kind == kind and (not controller or controller in options.split(",")):
            mount_root, mount_point = before.split(" ")[3:5]
            relative = os.path.relpath(inside, mount_root)
            if not relative.startswith(".."):
                return root / mount_point.lstrip("/") / relative
    return None


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except FileNotFoundError:
        return []
