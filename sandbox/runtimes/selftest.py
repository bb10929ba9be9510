"""The self-test: a box tries to get out, and the sandbox refuses to serve when anything gets through."""

import json
import os
import socket
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from pathlib import Path
from typing import Any, Protocol

from core.errors import SandboxError
from sandbox.runtimes.base import BoxSpec, Outcome
from sandbox.runtimes.local_box import LocalBox
from sandbox.runtimes.processes import real_uid

_PROBES = (Path(__file__).with_name("inside") / "probes.py").read_text()
_DISK_MIB = 2
_MEMORY_MIB = 64
_MOST_PROCESSES = 12
_OUTPUT_BYTES = 16_384
_PROBE_SECONDS = 60.0

_HOG = "held = []\nfor _ in range(40):\n    held.append(b'x' * (8 << 20))\nimport time; time.sleep(5)"
_BOMB = """
import os, time
made = 0
try:
    while made < 100:
        if os.fork() == 0:
            time.sleep(30)
        made += 1
except BlockingIOError:
    pass
print(made)
"""
_FLOOD = "import sys\nwhile True: sys.stdout.write('x' * 65536)"
_DAEMON = "import os, time\nif os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n        time.sleep(60)"
_COUNT = "import os; print(sum(name.isdigit() for name in os.listdir('/proc')))"
_AGENT_AND_SELF = 2


class Provable(Protocol):
    """A runtime that can be put to the test."""

    @property
    def name(self) -> str:
        """The wall's name."""

    def box(self, spec: BoxSpec | None = None) -> AbstractAsyncContextManager[LocalBox]:
        """A fresh box."""


async def prove(runtime: Provable) -> dict[str, str]:
    """Run every probe; raises SandboxError that names those that got through. Returns probe → empty text."""
    namespaces = runtime.name == "bubblewrap"
    spec = BoxSpec(
        readonly_files={"probe.txt": "fixed"},
        disk_mib=_DISK_MIB,
        memory_mib=_MEMORY_MIB,
        max_processes=_MOST_PROCESSES,
        output_bytes=_OUTPUT_BYTES,
        wall_seconds=_PROBE_SECONDS,
    )
    async with runtime.box(spec) as box:
        findings = await _isolation(box, namespaces=namespaces)
        findings |= await _limits(box, namespaces=namespaces)
    # Last and alone: when its memory is full, the kernel may well choose the box's own first process.
    async with runtime.box(spec) as box:
        hog = await box.python(_HOG)
        findings["memory"] = "" if hog.outcome is Outcome.OOM else f"got {hog.outcome}"
    through = {name: finding for name, finding in findings.items() if finding}
    if through:
        listed = "; ".join(f"{name}: {finding}" for name, finding in through.items())
        raise SandboxError(
            f"the {runtime.name} sandbox does not hold here: {listed}",
            hint="no untrusted code runs until this is mended; see docs/sandbox.md",
        )
    return findings


async def _isolation(box: LocalBox, *, namespaces: bool) -> dict[str, str]:
    with _bait() as bait:
        given = {
            **bait,
            "readonly": box.readonly_folder,
            "host_pid": os.getpid(),
            "foreign_uid": os.getuid() == 0,
            "disk_mib": _DISK_MIB if namespaces else 0,
            "namespaces": namespaces,
        }
        result = await box.python(_PROBES, stdin=json.dumps(given))
    if not result.ok:
        raise SandboxError(f"the self-test did not run: {result.outcome}: {result.stderr[-500:]}")
    findings: dict[str, str] = json.loads(result.stdout)
    if real_uid(box.agent_pid) == 0:
        findings["host_uid"] = "the box runs as the host's root"
    return findings


async def _limits(box: LocalBox, *, namespaces: bool) -> dict[str, str]:
    findings: dict[str, str] = {}

    def expect(name: str, holds: bool, got: object) -> None:
        findings[name] = "" if holds else f"got {got}"

    bomb = await box.python(_BOMB)
    made = int(bomb.stdout) if bomb.ok and bomb.stdout.strip().isdigit() else -1
    expect(
        "process_count",
        0 <= made <= _MOST_PROCESSES,
        f"{made} processes ({bomb.outcome}) {bomb.stderr[-200:]}",
    )
    flood = await box.python(_FLOOD)
    held = flood.outcome is Outcome.OUTPUT_LIMIT and len(flood.stdout) <= _OUTPUT_BYTES
    expect("output", held, flood.outcome)
    sleeper = await box.exec(["sleep", "30"], wall_seconds=0.1)
    expect("wall", sleeper.outcome is Outcome.TIMEOUT, sleeper.outcome)
    if namespaces:
        await box.python(_DAEMON)
        left = await box.python(_COUNT)
        expect("daemons", left.stdout.strip() == str(_AGENT_AND_SELF), f"{left.stdout.strip()} processes")
    return findings


@contextmanager
def _bait() -> Iterator[dict[str, Any]]:
    """What a leaky box would find: a readable file and listening sockets of the host."""
    name = f"hone-bait-{uuid.uuid4().hex}"
    with (
        tempfile.TemporaryDirectory(prefix="hone-bait-") as folder,
        socket.create_server(("127.0.0.1", 0)) as tcp,
        socket.socket(socket.AF_UNIX) as abstract,
        socket.socket(socket.AF_UNIX) as named,
    ):
        Path(folder).chmod(0o755)
        canary = Path(folder) / "canary"
        canary.write_text("seen")
        canary.chmod(0o644)
        path = f"{folder}/socket"
        abstract.bind(f"\0{name}")
        named.bind(path)
        Path(path).chmod(0o777)
        for listener in (abstract, named):
            listener.listen()
        yield {"canary": str(canary), "port": tcp.getsockname()[1], "abstract": name, "socket_path": path}
