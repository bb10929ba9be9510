"""What the benchmark asks the machine: CPU time per core and per process tree, and memory."""

import os
import signal
from pathlib import Path

import psutil

GATEWAY_CORE = 0
"""Where the candidate runs, alone."""
LOAD_CORE = 1
"""Where the mock engine and the load generator run."""
_TICKS = os.sysconf("SC_CLK_TCK")
_IDLE_COLUMNS = (3, 4)


def core_busy_seconds(core: int) -> float:
    """CPU time that a core has spent on anything, time stolen by the host included."""
    for line in Path("/proc/stat").read_text().splitlines():
        name, *columns = line.split()
        if name == f"cpu{core}":
            # guest times are part of user times, so only the first eight columns count.
            return sum(int(column) for i, column in enumerate(columns[:8]) if i not in _IDLE_COLUMNS) / _TICKS
    return 0.0


def tree(pid: int) -> list[psutil.Process]:
    """A process and everything below it that may run on the gateway's core."""
    found = []
    try:
        process = psutil.Process(pid)
        for member in (process, *process.children(recursive=True)):
            if GATEWAY_CORE in member.cpu_affinity():
                found.append(member)
    except psutil.NoSuchProcess:
        return found
    return found


def process_cpu_seconds(pid: int) -> float:
    """User and system time of one process."""
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)


def tree_cpu_seconds(pid: int) -> float:
    """User and system time of a process tree."""
    total = 0.0
    for process in tree(pid):
        try:
            times = process.cpu_times()
        except psutil.NoSuchProcess:
            continue
        total += times.user + times.system
    return total


def tree_pss_mb(pid: int) -> float:
    """Memory of a process tree, shared pages divided among those who share them, in MB."""
    total = 0
    for process in tree(pid):
        try:
            total += process.memory_full_info().pss
        except psutil.NoSuchProcess:
            continue
    return total / 1e6


def signal_tree(pid: int, number: signal.Signals) -> None:
    """Send a signal to a process tree: SIGSTOP keeps a candidate quiet while another one is measured."""
    for process in tree(pid):
        try:
            process.send_signal(number)
        except psutil.NoSuchProcess:
            continue


def clean_environment(more: dict[str, str] | None = None) -> dict[str, str]:
    """The environment without the configuration of a Hone that may be installed here."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HONE_")}
    return kept | (more or {})


def pinned(core: int, command: list[str]) -> list[str]:
    """The command, bound to one core."""
    return ["taskset", "-c", str(core), *command]
