"""What machine a benchmark ran on, and which Hone."""

import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parent.parent


def describe() -> dict[str, str]:
    """What machine this is."""
    model = next(
        (
            line.split(":", 1)[1].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        platform.machine(),
    )
    return {
        "cpu": model,
        "cores": str(os.cpu_count()),
        "memory": f"{psutil.virtual_memory().total / 2**30:.0f} GiB",
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
    }


def hone_version() -> str:
    """Hone's version and commit."""
    git = ["git", "describe", "--always", "--dirty"]
    commit = subprocess.run(git, check=False, capture_output=True, text=True, cwd=ROOT).stdout.strip()
    return f"{metadata.version('hone')} ({commit or 'no commit'})"
