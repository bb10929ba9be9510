"""A Box on this machine, whatever the wall: supervises one command at a time through the agent inside."""

import asyncio
import errno
import json
import os
import signal
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog

from core.errors import SandboxError
from sandbox.runtimes.base import ExecResult, Outcome
from sandbox.runtimes.capture import Capture
from sandbox.runtimes.channel import Channel, ChannelClosed, sealed
from sandbox.runtimes.conversation import LocalConversation
from sandbox.runtimes.launch import BoxProcess
from sandbox.runtimes.memory import MemoryGuard
from sandbox.runtimes.processes import threads_of_user

log = structlog.get_logger(__name__)

_TICK_SECONDS = 0.05
_GRACE_SECONDS = 5.0
_FILE_SECONDS = 30.0
_FLOOD_FACTOR = 16
_EVIDENCE_BYTES = 4_096
_MIB = 1 << 20
_OPEN_FILES = 256
_AGENT_PROCESSES = 1
_MOST_LIST_BYTES = 1 << 20
_KIB_PER_MIB = 1024


@dataclass(frozen=True)
class Limits:
    """The limits of one box, all decided."""

    wall_seconds: float
    cpu_seconds: int
    memory_mib: int
    max_processes: int
    disk_mib: int
    output_bytes: int


@dataclass(frozen=True)
class Surroundings:
    """What the code finds around itself."""

    work_folder: str
    readonly_folder: str
    temporary_folder: str
    path: str
    shared_uid: bool
    agent_exposed: bool


class LocalBox:
    """One live sandbox; see ``sandbox.runtimes.base.Box`` for what its methods promise."""

    def __init__(
        self,
        *,
        channel: Channel,
        process: BoxProcess,
        guard: MemoryGuard,
        surroundings: Surroundings,
        readonly: Path,
        backend: str,
        enforced: tuple[str, ...],
        on_close: Callable[[], Awaitable[None]],
    ) -> None:
        self._channel = channel
        self._process = process
        self._guard = guard
        self._surroundings = surroundings
        self._readonly = readonly
        self._backend = backend
        self._enforced = (*enforced, f"memory:{guard.name}", "wall", "cpu:rlimit_per_process", "output")
        self._on_close = on_close
        self._limits: Limits | None = None
        self._lock = asyncio.Lock()
        self._gone: tuple[Outcome, str] | None = None
        self._closing: asyncio.Task[None] | None = None
        self._expiry: asyncio.TimerHandle | None = None

    @property
    def work_folder(self) -> str:
        """The writable current folder, seen from inside."""
        return self._surroundings.work_folder

    @property
    def readonly_folder(self) -> str:
        """Where the read-only files lie, seen from inside."""
        return self._surroundings.readonly_folder

    @property
    def alive(self) -> bool:
        """Whether commands can still run."""
        return self._gone is None and self._process.running

    @property
    def agent_pid(self) -> int:
        """The host's process id of the agent, for checks of the isolation."""
        return self._process.agent_pid

    def evidence(self) -> str:
        """What the box's starter left to read: why it ended."""
        return self._process.evidence() or "no evidence"

    async def prepare(self, limits: Limits, *, ttl_seconds: float, files: Mapping[str, str]) -> None:
        """Give a waiting box its limits, its life time and its files. Raises SandboxError."""
        self._limits = limits
        try:
            self._guard.limit(limits.memory_mib, limits.max_processes)
        except OSError as error:
            raise SandboxError(f"the memory limit cannot be set: {error}") from error
        self._expiry = asyncio.get_running_loop().call_later(ttl_seconds, self._expire, ttl_seconds)
        if files:
            try:
                await self._move({"op": "write", "files": dict(files)}, [])
            except OSError as error:
                raise SandboxError(f"the files do not fit into the box: {error}") from error

    def lay_readonly(self, files: Mapping[str, str]) -> None:
        """Lay read-only files from the host's side: the code inside cannot have touched that folder."""
        for path, text in files.items():
            folder = self._readonly
            for part in Path(path).parts[:-1]:
                folder /= part
                folder.mkdir(exist_ok=True)
                folder.chmod(0o755)
            target = self._readonly / path
            target.write_bytes(_encode(text))
            target.chmod(0o644)

    async def exec(
        self,
        argv: Sequence[str],
        *,
        stdin: str | None = None,
        wall_seconds: float | None = None,
        env: Mapping[str, str] | None = None,
    ) -> ExecResult:
        """Run a program found on the box's PATH."""
        if not argv:
            return self._result(Outcome.NONZERO, exit_code=127, stderr="empty command\n")
        return await self._run({"argv": list(argv)}, stdin=stdin, wall_seconds=wall_seconds, env=env)

    async def python(
        self,
        code: str,
        *,
        arguments: Sequence[str] = (),
        stdin: str | None = None,
        wall_seconds: float | None = None,
        env: Mapping[str, str] | None = None,
    ) -> ExecResult:
        """Run Python code in a fork of the waiting interpreter."""
        request = {"code": code, "argv": list(arguments)}
        return await self._run(request, stdin=stdin, wall_seconds=wall_seconds, env=env)

    async def shell(
        self,
        command: str,
        *,
        stdin: str | None = None,
        wall_seconds: float | None = None,
        env: Mapping[str, str] | None = None,
    ) -> ExecResult:
        """Run a command line with ``/bin/sh -c``."""
        return await self.exec(["/bin/sh", "-c", command], stdin=stdin, wall_seconds=wall_seconds, env=env)

    @asynccontextmanager
    async def converse(
        self, argv: Sequence[str], *, most_bytes: int, env: Mapping[str, str] | None = None
    ) -> AsyncIterator[LocalConversation]:
        """A program to talk to, killed on exit."""
        host, inside = socket.socketpair()
        with inside, host, Capture(keep=_EVIDENCE_BYTES) as stderr:
            reply = await self._begin(list(argv), env, inside, stderr)
            inside.close()

            async def finish(cause: Outcome | None) -> ExecResult:
                return await self._end_conversation(cause, reply, stderr)

            talk = LocalConversation(
                streams=host, ended=reply, exceeded=self._guard.exceeded, finish=finish, most_bytes=most_bytes
            )
            try:
                await talk.open()
                yield talk
            finally:
                await asyncio.shield(talk.close())

    async def _begin(
        self, argv: list[str], env: Mapping[str, str] | None, inside: socket.socket, stderr: Capture
    ) -> "asyncio.Task[dict[str, Any]]":
        """Start the program of a conversation; the task holds the box until the program's end."""
        await self._lock.acquire()
        try:
            if self._gone is not None or self._limits is None:
                raise SandboxError(f"the box is gone: {self._ending()[1]}")
            whole = {"argv": argv, "op": "run", "env": self._environment(env), "rlimits": self._rlimits(self._limits)}
            self._guard.begin()
            self._channel.send(whole, [inside.fileno(), inside.fileno(), stderr.write_end])
        except ChannelClosed as error:
            self._lock.release()
            await self._lost(None)
            raise SandboxError(f"the box does not answer: {error}") from error
        except BaseException:
            self._lock.release()
            raise
        stderr.handed_over()
        return asyncio.create_task(self._program_end())

    async def _program_end(self) -> dict[str, Any]:
        try:
            return await self._channel.receive()
        except ChannelClosed as error:
            return {"gone": str(error)}
        finally:
            self._lock.release()

    async def _end_conversation(
        self, cause: Outcome | None, reply: "asyncio.Task[dict[str, Any]]", stderr: Capture
    ) -> ExecResult:
        if not reply.done():
            self._channel.interrupt()
            await asyncio.wait({reply}, timeout=_GRACE_SECONDS)
        if not reply.done() or "gone" in reply.result():
            await self._lost(cause)
            await asyncio.wait({reply})
        await stderr.drain(_GRACE_SECONDS)
        return self._judge(cause, reply.result(), {"stderr": stderr.text})

    async def read(self, path: str, max_bytes: int) -> bytes:
        """The content of a regular file."""
        return await self._fetch({"op": "read", "path": path, "max_bytes": max_bytes}, max_bytes)

    async def write(self, path: str, data: bytes | str) -> None:
        """Create or replace a file."""
        content = _encode(data) if isinstance(data, str) else data
        with sealed(content) as descriptor:
            await self._move({"op": "write", "path": path}, [descriptor])

    async def list(self, path: str = ".") -> list[str]:
        """Relative paths of the files under ``path``."""
        data = await self._fetch({"op": "list", "path": path}, _MOST_LIST_BYTES)
        try:
            names = json.loads(data)
        except ValueError as error:
            raise OSError(f"the list of files is not complete: {error}") from error
        return [str(name) for name in names]

    async def close(self) -> None:
        """Kill everything in the box and wait until it is gone."""
        if self._closing is None:
            self._closing = asyncio.create_task(self._close())
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        if self._expiry is not None:
            self._expiry.cancel()
        self._end(Outcome.KILLED, "the box is closed")
        try:
            await self._process.gone()
            self._guard.close()
        except OSError as error:
            log.warning("memory_group_left", error=str(error))  # empty; the next start clears it away
        finally:
            self._process.free()
            async with self._lock:
                self._channel.close()
            await self._on_close()

    async def _run(
        self,
        request: dict[str, Any],
        *,
        stdin: str | None,
        wall_seconds: float | None,
        env: Mapping[str, str] | None,
    ) -> ExecResult:
        async with self._lock:
            if self._gone is not None or self._limits is None:
                return self._gone_result()
            limits = self._limits
            whole = {**request, "op": "run", "env": self._environment(env), "rlimits": self._rlimits(limits)}
            wall = min(wall_seconds or limits.wall_seconds, limits.wall_seconds)
            flooded = asyncio.Event()
            keep, flood = limits.output_bytes, limits.output_bytes * _FLOOD_FACTOR
            with (
                Capture(keep=keep, flood=flood, on_flood=flooded.set) as stdout,
                Capture(keep=keep, flood=flood, on_flood=flooded.set) as stderr,
                sealed(_encode(stdin or "")) as given,
            ):
                started = time.monotonic()
                try:
                    self._guard.begin()
                    self._channel.send(whole, [given, stdout.write_end, stderr.write_end])
                    stdout.handed_over()
                    stderr.handed_over()
                    cause, reply = await self._supervise(wall, flooded)
                except asyncio.CancelledError:
                    self._end(Outcome.KILLED, "the command was cancelled")
                    raise
                except ChannelClosed as error:
                    cause, reply = None, {"gone": str(error)}
                elapsed = time.monotonic() - started
                if reply is None or "gone" in reply:
                    await self._lost(cause)
                await stdout.drain(_GRACE_SECONDS)
                await stderr.drain(_GRACE_SECONDS)
                fields = {
                    "stdout": stdout.text,
                    "stderr": stderr.text,
                    "stdout_truncated": stdout.truncated,
                    "stderr_truncated": stderr.truncated,
                    "wall_seconds": elapsed,
                }
                return self._judge(cause, reply, fields)

    async def _supervise(self, wall: float, flooded: asyncio.Event) -> tuple[Outcome | None, dict[str, Any] | None]:
        """Wait for the command; returns why it had to be killed, if so, and the reply, if one came."""
        deadline = time.monotonic() + wall
        reply = asyncio.ensure_future(self._channel.receive())
        flood = asyncio.ensure_future(flooded.wait())
        try:
            cause: Outcome | None = None
            while not reply.done():
                left = deadline - time.monotonic()
                await asyncio.wait(
                    {reply, flood},
                    timeout=max(0.0, min(left, _TICK_SECONDS)),
                    return_when=asyncio.FIRST_COMPLETED,
                )
                if reply.done():
                    break
                cause = self._reason_to_kill(flooded, deadline)
                if cause is not None:
                    self._channel.interrupt()
                    await asyncio.wait({reply}, timeout=_GRACE_SECONDS)
                    break
            return cause, (reply.result() if reply.done() else None)
        finally:
            flood.cancel()
            if not reply.done():
                reply.cancel()
                await asyncio.wait({reply})

    def _reason_to_kill(self, flooded: asyncio.Event, deadline: float) -> Outcome | None:
        if flooded.is_set():
            return Outcome.OUTPUT_LIMIT
        if self._guard.exceeded():
            return Outcome.OOM
        if time.monotonic() >= deadline:
            return Outcome.TIMEOUT
        return None

    async def _lost(self, cause: Outcome | None) -> None:
        """The agent did not answer: find out why, and end the box for good."""
        if self._gone is not None:
            return
        if self._guard.exceeded():
            self._end(Outcome.OOM, "the box was killed because its memory was full")
        elif cause is not None:
            self._end(cause, f"the box did not stop after {cause.value} and was killed as a whole")
        elif self._surroundings.agent_exposed:
            self._end(Outcome.KILLED, "the code killed the agent of its own box")
        else:
            await asyncio.sleep(_TICK_SECONDS)  # the starter's own exit comes a moment after the agent's
            self._end(Outcome.INFRA_ERROR, f"the box died: {self.evidence()}")

    def _judge(self, cause: Outcome | None, reply: dict[str, Any] | None, fields: dict[str, Any]) -> ExecResult:
        """One result from why it was killed, what the agent said and what was captured."""
        if reply is None or self._gone is not None:
            outcome, evidence = self._gone or (Outcome.INFRA_ERROR, "no reply")
            return self._result(outcome, **{**fields, "stderr": f"{fields['stderr']}{evidence}\n"})
        if "start_failed" in reply:
            return self._result(Outcome.START_FAILED, **{**fields, "stderr": str(reply["start_failed"])})
        try:
            status, cpu = int(reply["status"]), float(reply["cpu"])
            fields |= {"cpu_seconds": cpu, "max_rss_mib": float(reply["rss_kib"]) / _KIB_PER_MIB}
            code = os.waitstatus_to_exitcode(status)
        except (KeyError, TypeError, ValueError) as error:
            self._end(Outcome.INFRA_ERROR, f"the agent's reply makes no sense: {error}")
            return self._gone_result()
        fields["exit_code" if code >= 0 else "signal"] = abs(code)
        return self._result(cause or self._outcome(code, cpu), **fields)

    def _outcome(self, code: int, cpu: float) -> Outcome:
        if code == 0:
            return Outcome.OK
        if self._guard.exceeded():
            return Outcome.OOM
        if code > 0:
            return Outcome.NONZERO
        limit = self._limits.cpu_seconds if self._limits else 0
        out_of_cpu = -code == signal.SIGXCPU or (-code == signal.SIGKILL and cpu >= limit)
        return Outcome.TIMEOUT if out_of_cpu else Outcome.KILLED

    def _environment(self, extra: Mapping[str, str] | None) -> dict[str, str]:
        return {
            "PATH": self._surroundings.path,
            "HOME": self._surroundings.work_folder,
            "TMPDIR": self._surroundings.temporary_folder,
            "LANG": "C.UTF-8",
            "PYTHONDONTWRITEBYTECODE": "1",
            **(extra or {}),
        }

    def _rlimits(self, limits: Limits) -> dict[str, tuple[int, int]]:
        # Address space is not memory: threads and libraries reserve much more than they use. The guard limits
        # memory; this only bounds how far one process can get between two looks of a watcher.
        space = (2 * limits.memory_mib + 512) * _MIB
        others = threads_of_user(os.getuid()) if self._surroundings.shared_uid else _AGENT_PROCESSES
        processes = limits.max_processes + others
        return {
            "RLIMIT_AS": (space, space),
            "RLIMIT_CPU": (limits.cpu_seconds, limits.cpu_seconds + 1),
            "RLIMIT_NPROC": (processes, processes),
            "RLIMIT_FSIZE": (limits.disk_mib * _MIB, limits.disk_mib * _MIB),
            "RLIMIT_NOFILE": (_OPEN_FILES, _OPEN_FILES),
            "RLIMIT_CORE": (0, 0),
            "RLIMIT_MSGQUEUE": (0, 0),
        }

    async def _move(self, request: dict[str, Any], descriptors: Sequence[int]) -> None:
        """One file operation; raises OSError for the content's fault, SandboxError for the sandbox's."""
        async with self._lock:
            await self._ask(request, descriptors)

    async def _fetch(self, request: dict[str, Any], max_bytes: int) -> bytes:
        async with self._lock:
            with Capture(keep=max_bytes) as pipe:
                await self._ask(request, [pipe.write_end], pipe.handed_over)
                if not await pipe.drain(_FILE_SECONDS):
                    self._end(Outcome.INFRA_ERROR, "the agent does not finish sending a file")
                    raise SandboxError("the box does not finish sending a file")
                return pipe.data

    async def _ask(
        self, request: dict[str, Any], descriptors: Sequence[int], sent: Callable[[], None] | None = None
    ) -> None:
        if self._gone is not None:
            raise SandboxError(f"the box is gone: {self._gone[1]}")
        try:
            self._guard.begin()
            self._channel.send(request, descriptors)
            if sent is not None:
                sent()
            async with asyncio.timeout(_FILE_SECONDS):
                reply = await self._channel.receive()
        except (ChannelClosed, TimeoutError) as error:
            await self._lost(None)
            outcome, evidence = self._ending()
            if outcome in (Outcome.OOM, Outcome.KILLED):
                raise OSError(errno.ENOMEM, evidence) from error  # what lies in the box killed it
            raise SandboxError(f"the box does not answer: {error or 'timeout'}") from error
        except asyncio.CancelledError:
            self._end(Outcome.KILLED, "a file operation was cancelled")
            raise
        if "errno" in reply:
            raise OSError(int(reply["errno"]), str(reply.get("message", "")), str(request.get("path", "")))

    def _expire(self, ttl_seconds: float) -> None:
        self._end(Outcome.KILLED, f"the box lived longer than {ttl_seconds:g} s")

    def _end(self, outcome: Outcome, evidence: str) -> None:
        """Kill the box, now; the first reason is the one that is told."""
        if self._gone is None:
            self._gone = (outcome, evidence)
        self._channel.shut()
        self._process.kill()

    def _ending(self) -> tuple[Outcome, str]:
        return self._gone or (Outcome.INFRA_ERROR, "the box was never prepared")

    def _gone_result(self) -> ExecResult:
        outcome, evidence = self._ending()
        return self._result(outcome, stderr=f"{evidence}\n")

    def _result(self, outcome: Outcome, **fields: Any) -> ExecResult:
        return ExecResult(outcome=outcome, backend=self._backend, limits_enforced=self._enforced, **fields)


def _encode(text: str) -> bytes:
    """UTF-8; lone surrogates, which a policy's JSON can carry, become question marks."""
    return text.encode(errors="replace")
