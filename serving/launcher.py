"""Starts, watches and ends vLLM server processes."""

import asyncio
import contextlib
import os
import signal
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

import psutil
import structlog

from core.errors import MachineError
from serving.engines.base import Engine
from serving.launch import SERVER_MODULE, Launch
from serving.launch_sglang import SGLANG_MODULE

log = structlog.get_logger(__name__)

_POLL_SECONDS = 0.25
_GONE_SECONDS = 0.05
_TERM_SECONDS = 15.0
_LOG_TAIL_BYTES = 4_000


class EngineProcess:
    """One vLLM server process in a process group of its own, started here or adopted from an earlier run."""

    def __init__(self, *, command: list[str], environment: Mapping[str, str], log_path: Path) -> None:
        self._command = command
        self._environment = dict(environment)
        self._log_path = log_path
        self._child: subprocess.Popen[bytes] | None = None
        self._adopted: psutil.Process | None = None

    @classmethod
    def of_launch(cls, launch: Launch, log_path: Path) -> "EngineProcess":
        """The process that ``launch`` describes, not started yet."""
        return cls(command=launch.command(), environment=launch.environment(), log_path=log_path)

    def prepare(self, launch: Launch) -> None:
        """The next start is that of ``launch``."""
        self._command, self._environment = launch.command(), launch.environment()

    @property
    def pid(self) -> int | None:
        """The process's id, also its group's; None when not started."""
        if self._child is not None:
            return self._child.pid
        return None if self._adopted is None else int(self._adopted.pid)

    def adopt(self, pid: int) -> bool:
        """Take over ``pid`` if it runs exactly this command in a group of its own (ids are reused)."""
        found = _group_leader(pid)
        if found is None or found[1] != self._command:
            return False
        self._adopted, self._child = found[0], None
        return True

    def adopt_other(self, pid: int, port: int) -> bool:
        """Take over the engine server ``pid`` on ``port``, whatever its other arguments, until the next start."""
        found = _group_leader(pid)
        if found is None or not _is_server(found[1], port):
            return False
        self._adopted, self._child = found[0], None
        return True

    def find(self) -> int | None:
        """A running process with exactly this command, which a fleet that was killed had no time to record."""
        for process in psutil.process_iter(["cmdline"]):
            if process.info["cmdline"] == self._command and _group_leader(process.pid) is not None:
                return int(process.pid)
        return None

    async def start(self) -> None:
        """Start the process, its output appended to the log file. MachineError: it cannot run."""
        self._adopted = None
        try:
            self._child = await asyncio.to_thread(self._spawn)
        except OSError as error:
            raise MachineError(f"the engine cannot be started: {error}", hint="is engine.python right?") from error
        log.info("engine_started", pid=self._child.pid, log=str(self._log_path))

    def _spawn(self) -> subprocess.Popen[bytes]:
        # Not asyncio's subprocess: that one kills its child when it is collected, and an engine outlives its fleet.
        self._log_path.parent.mkdir(parents=True, exist_ok=True)
        with self._log_path.open("ab") as output:
            return subprocess.Popen(
                self._command,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def alive(self) -> bool:
        """Whether the process runs."""
        if self._child is not None:
            return self._child.poll() is None
        if self._adopted is None:
            return False
        try:
            return bool(self._adopted.is_running()) and self._adopted.status() != psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return False

    async def wait_ready(self, engine: Engine, *, timeout_seconds: float, progress: Callable[[str], None]) -> None:
        """Wait until the engine answers. MachineError, with its log's end, when it dies or is too late."""
        loop = asyncio.get_running_loop()
        started = loop.time()
        while loop.time() - started < timeout_seconds:
            if not self.alive():
                raise MachineError(f"the engine ended while starting: {self.log_tail()}", hint=self._hint())
            if await engine.health():
                progress(f"{engine.url} is ready after {loop.time() - started:.0f} s")
                return
            await asyncio.sleep(_POLL_SECONDS)
        raise MachineError(
            f"the engine at {engine.url} was not ready after {timeout_seconds:.0f} s: {self.log_tail()}",
            hint="raise engine.start_timeout_seconds on a slow machine",
        )

    async def stop(self) -> None:
        """End the whole process group: SIGTERM, and SIGKILL for what is left after 15 s."""
        pid = self.pid
        if pid is None:
            return
        if self._child is not None or self.alive():
            self._signal(pid, signal.SIGTERM)
            await self._gone()
            # The engine core is a child of the server and may outlive it: the group gets SIGKILL in any case.
            self._signal(pid, signal.SIGKILL)
            await self._gone()
            if self._adopted is not None:
                # It may be a child of this process, started before the fleet lost its lead and won it again.
                with contextlib.suppress(psutil.TimeoutExpired):
                    await asyncio.to_thread(self._adopted.wait, 1.0)
        self._child = self._adopted = None
        log.info("engine_stopped", pid=pid)

    def log_tail(self) -> str:
        """The end of the log file, for error messages."""
        try:
            with self._log_path.open("rb") as stream:
                stream.seek(max(0, self._log_path.stat().st_size - _LOG_TAIL_BYTES))
                return stream.read().decode(errors="replace").strip()[-1_000:]
        except OSError as error:
            return f"(no log: {error})"

    async def _gone(self) -> None:
        for _ in range(round(_TERM_SECONDS / _GONE_SECONDS)):
            if not self.alive():
                return
            await asyncio.sleep(_GONE_SECONDS)

    def _hint(self) -> str:
        tail = self.log_tail()
        if "Arctic Inference" in tail:
            return "put arctic-inference==0.1.1 into the engine's environment, or choose fleet.fast_method = ngram"
        if "ModuleNotFoundError" in tail or "No module named" in tail:
            return "set engine.python to the interpreter of the environment that holds vLLM"
        if "address already in use" in tail.lower():
            return "end what listens on the port, or set fleet.first_port (0: free ports)"
        if "emory" in tail:
            return "lower engine.kv_cache_gib or engine.gpu_memory_share, or serve fewer fleet.variants"
        return f"see {self._log_path}"

    @staticmethod
    def _signal(group: int, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(group, number)


async def end_leftover(pid: int, port: int) -> bool:
    """End ``pid`` if it is a vLLM server on ``port`` that an earlier fleet left; whether it was."""
    found = _group_leader(pid)
    if found is None:
        return False
    line = found[1]
    if not _is_server(line, port):
        return False
    leftover = EngineProcess(command=line, environment={}, log_path=Path(os.devnull))
    if leftover.adopt(pid):
        await leftover.stop()
    return True


def _is_server(line: list[str], port: int) -> bool:
    """Whether a command line is that of an engine server on ``port``."""
    if not {SERVER_MODULE, SGLANG_MODULE} & set(line) or "--port" not in line:
        return False
    return line[line.index("--port") + 1 :][:1] == [str(port)]


def _group_leader(pid: int) -> tuple[psutil.Process, list[str]] | None:
    """The process ``pid`` and its command line, if it leads a process group."""
    try:
        process = psutil.Process(pid)
        return (process, process.cmdline()) if os.getpgid(pid) == pid else None
    except (psutil.Error, ProcessLookupError):
        return None
