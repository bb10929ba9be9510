"""Keeps the processes of one machine running: starts, watches, restarts with back-off, stops in a given order."""

import asyncio
import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import structlog

from core.errors import MachineError

log = structlog.get_logger(__name__)

_RESTART_SECONDS = (1.0, 2.0, 5.0, 10.0, 30.0)
_STOP_SECONDS = 60.0
_STABLE_SECONDS = 60.0
_LAST_LINES = 5


class Child:
    """One supervised process with its log file; mutable, owned by the Supervisor."""

    def __init__(self, name: str, log_path: Path, arguments: Sequence[str] = (), module: str = "") -> None:
        self.name = name
        self.module = module or name
        self.log_path = log_path
        self.arguments = tuple(arguments)
        self.process: asyncio.subprocess.Process | None = None
        self.restarts = 0
        """Since it last ran for a minute."""
        self.deaths = 0
        """Since it was first started."""
        self.started_at = 0.0
        self.failure: OSError | None = None
        """Why it could not be started again."""

    def last_lines(self) -> str:
        """The end of the child's log, for an error message."""
        if not self.log_path.exists():
            return ""
        return "\n".join(self.log_path.read_text(errors="replace").splitlines()[-_LAST_LINES:])


class Supervisor:
    """Runs ``python -m hone.processes.NAME`` for each name until stopped."""

    def __init__(self, *, environment: Mapping[str, str], log_folder: Path) -> None:
        self._environment = dict(environment)
        self._log_folder = log_folder
        self._children: list[Child] = []
        self._watchers: list[asyncio.Task[None]] = []
        self._stopping = False

    async def start(self, name: str, *, arguments: Sequence[str] = (), module: str = "") -> None:
        """Start one process and watch it from now on; raises MachineError when it cannot be started.

        ``module``: what is run, where several processes run the same.
        """
        child = Child(name, self._log_folder / f"{name}.log", arguments, module)
        try:
            self._log_folder.mkdir(parents=True, exist_ok=True)
            await self._spawn(child)
        except OSError as error:
            raise MachineError(f"the {name} process cannot be started: {error}") from error
        self._children.append(child)
        self._watchers.append(asyncio.create_task(self._watch(child), name=f"watch {name}"))

    async def stop(self, order: Sequence[str] = ()) -> None:
        """Stop every process, those named in ``order`` first and in that order; SIGTERM, then SIGKILL.

        Nothing is restarted any more, so that a process that was in its back-off stays away.
        """
        self._stopping = True
        for watcher in self._watchers:
            watcher.cancel()
        await asyncio.gather(*self._watchers, return_exceptions=True)
        ranks = {name: rank for rank, name in enumerate(order)}
        for child in sorted(reversed(self._children), key=lambda child: ranks.get(child.name, len(ranks))):
            await _stop_child(child)

    def check(self) -> None:
        """Raise MachineError when a process keeps dying or cannot be started again, with the end of its log."""
        for child in self._children:
            if child.failure is not None:
                raise MachineError(f"the {child.name} process cannot be started again: {child.failure}")
            if child.restarts >= len(_RESTART_SECONDS):
                raise MachineError(
                    f"the {child.name} process keeps dying:\n{child.last_lines()}",
                    hint=f"its whole log is {child.log_path}",
                )

    def failure_of(self, name: str) -> str | None:
        """The end of the log of a process that has died at least once, else None."""
        for child in self._children:
            if child.name == name and child.deaths:
                return child.last_lines()
        return None

    @property
    def deaths(self) -> dict[str, int]:
        """How often each process has died on its own; those that never did are left out."""
        return {child.name: child.deaths for child in self._children if child.deaths}

    @property
    def pids(self) -> dict[str, int]:
        """Process ids by name."""
        return {child.name: child.process.pid for child in self._children if child.process}

    async def _spawn(self, child: Child) -> None:
        with child.log_path.open("ab") as output:
            child.process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                f"hone.processes.{child.module}",
                *child.arguments,
                env=self._environment,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        child.started_at = time.monotonic()

    async def _watch(self, child: Child) -> None:
        while child.process is not None:
            code = await child.process.wait()
            if self._stopping:
                return
            if time.monotonic() - child.started_at > _STABLE_SECONDS:
                child.restarts = 0
            delay = _RESTART_SECONDS[min(child.restarts, len(_RESTART_SECONDS) - 1)]
            child.restarts += 1
            child.deaths += 1
            log.warning("child.died", name=child.name, code=code, restart_in_seconds=delay)
            await asyncio.sleep(delay)
            try:
                await self._spawn(child)
            except OSError as error:
                log.error("child.not_restarted", name=child.name, error=str(error))
                child.failure = error
                return


async def _stop_child(child: Child) -> None:
    process = child.process
    if process is None or process.returncode is not None:
        return
    process.terminate()
    try:
        async with asyncio.timeout(_STOP_SECONDS):
            await process.wait()
    except TimeoutError:
        log.warning("child.killed", name=child.name)
        _kill_group(process.pid)
        await process.wait()


def _kill_group(pid: int) -> None:
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        log.debug("child.already_gone", pid=pid)
