"""``hone doctor``: what this machine has, what it lacks, and how to get it."""

import platform
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from core.config.schema import HoneConfig
from core.errors import MachineError
from core.noun import Noun
from serving.ports import bound

_NEEDED_DISK_GIB = 5
_NEEDED_MEMORY_GIB = 6
_PROGRAM_SECONDS = 60


class Finding(Noun):
    """One thing that was looked at."""

    name: str
    state: Literal["ok", "warning", "missing"]
    detail: str
    hint: str = ""


def examine(config: HoneConfig) -> list[Finding]:
    """Look at everything that Hone needs on this machine; changes nothing."""
    checks: dict[str, Callable[[HoneConfig], Finding]] = {
        "Python": _python,
        "C++ compiler": _compiler,
        "bubblewrap": _bubblewrap,
        "engine (vLLM)": _engine,
        "learner (DeepSpeed)": _learner,
        "memory": _memory,
        "disk": _disk,
        "gateway port": _gateway_port,
        "GPU": _gpu,
    }
    return [_look(name, check, config) for name, check in checks.items()]


def _look(name: str, check: Callable[[HoneConfig], Finding], config: HoneConfig) -> Finding:
    """What a check finds; one that cannot look, by lack of permission say, is a finding too."""
    try:
        return check(config)
    except (OSError, subprocess.SubprocessError) as error:
        return Finding(name=name, state="warning", detail=f"could not be looked at: {error}")


def _launches(config: HoneConfig) -> bool:
    """Whether an engine is started on this machine."""
    return bool(set(config.fleet.variants) - set(config.fleet.attach))


def _python(_: HoneConfig) -> Finding:
    # An older Python cannot even read this file, so there is nothing to warn about here.
    return Finding(name="Python", state="ok", detail=platform.python_version())


def _compiler(config: HoneConfig) -> Finding:
    if not _launches(config):
        return Finding(name="C++ compiler", state="ok", detail="not needed: no engine is launched here")
    found = shutil.which("g++") or shutil.which("c++")
    if found:
        return Finding(name="C++ compiler", state="ok", detail=found)
    return Finding(
        name="C++ compiler",
        state="missing",
        detail="neither g++ nor c++ is on PATH; vLLM compiles kernels with it",
        hint="apt-get install build-essential",
    )


def _bubblewrap(config: HoneConfig) -> Finding:
    if config.sandbox.runtime != "bubblewrap":
        return Finding(name="bubblewrap", state="ok", detail=f"not needed by runtime '{config.sandbox.runtime}'")
    found = shutil.which(config.sandbox.bwrap)
    if found:
        return Finding(name="bubblewrap", state="ok", detail=found)
    return Finding(
        name="bubblewrap",
        state="missing",
        detail="tools cannot run isolated without it",
        hint="apt-get install bubblewrap",
    )


def _engine(config: HoneConfig) -> Finding:
    if not _launches(config):
        return Finding(name="engine (vLLM)", state="ok", detail="not needed: no engine is launched here")
    python = config.engine.python or sys.executable
    return _importable("engine (vLLM)", python, "vllm", "make install, or set engine.python")


def _learner(_: HoneConfig) -> Finding:
    return _importable("learner (DeepSpeed)", sys.executable, "deepspeed", "pip install 'hone[learner]'")


def _importable(name: str, python: str, package: str, hint: str) -> Finding:
    code = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({package!r}) is None)"
    program = shutil.which(python)
    if program is None:
        return Finding(name=name, state="missing", detail=f"{python} is no program", hint=hint)
    try:
        found = subprocess.run([program, "-c", code], check=False, capture_output=True, timeout=_PROGRAM_SECONDS)
    except (OSError, subprocess.SubprocessError) as error:
        return Finding(name=name, state="missing", detail=f"{program} cannot be run: {error}", hint=hint)
    if found.returncode == 0:
        return Finding(name=name, state="ok", detail=python)
    return Finding(name=name, state="missing", detail=f"{python} has no package {package}", hint=hint)


def _memory(_: HoneConfig) -> Finding:
    pages = Path("/proc/meminfo")
    if not pages.exists():
        return Finding(name="memory", state="warning", detail="unknown on this system")
    fields = dict(line.split(":", 1) for line in pages.read_text().splitlines())
    available = int(fields["MemAvailable"].split()[0]) / 2**20
    state: Literal["ok", "warning"] = "ok" if available >= _NEEDED_MEMORY_GIB else "warning"
    return Finding(
        name="memory",
        state=state,
        detail=f"{available:.1f} GiB available",
        hint="" if state == "ok" else f"the demo wants {_NEEDED_MEMORY_GIB} GiB",
    )


def _disk(config: HoneConfig) -> Finding:
    folder = config.data_dir.expanduser().absolute()
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free / 2**30
    state: Literal["ok", "warning"] = "ok" if free >= _NEEDED_DISK_GIB else "warning"
    return Finding(
        name="disk",
        state=state,
        detail=f"{free:.1f} GiB free at {folder}",
        hint="" if state == "ok" else "make room, or set data_dir and cache_dir elsewhere",
    )


def _gateway_port(config: HoneConfig) -> Finding:
    hint = "Hone may be running already; else set gateway.port"
    try:
        bound(config.gateway.host, config.gateway.port, hint=hint).close()
    except MachineError as error:
        return Finding(name="gateway port", state="warning", detail=error.message, hint=hint)
    return Finding(name="gateway port", state="ok", detail=f"{config.gateway.port} is free")


def _gpu(_: HoneConfig) -> Finding:
    program = shutil.which("nvidia-smi")
    if program is None:
        return Finding(name="GPU", state="ok", detail="none; engines and learner run on the CPU")
    listing = subprocess.run(
        [program, "-L"], check=False, capture_output=True, text=True, errors="replace", timeout=_PROGRAM_SECONDS
    )
    return Finding(name="GPU", state="ok", detail=listing.stdout.strip() or listing.stderr.strip())
