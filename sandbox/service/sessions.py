"""Sessions of the tool service: each holds one box, its files and its Python variables between calls."""

import asyncio
import base64
import json
import secrets
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import structlog
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from pydantic import ValidationError

from core.config.sandbox import SandboxSection, WorkerSection
from core.errors import InvalidRequest, NotFound, RateLimited, SandboxError
from sandbox.runtimes.base import Box, BoxSpec, Conversation, ExecResult, Outcome, Runtime
from sandbox.runtimes.conversation import ConversationEnded
from sandbox.service.wire import MOST_ANSWER_BYTES, MOST_FILE_BYTES, ChangedFile, Load, RunCall, RunDone

log = structlog.get_logger(__name__)

_DRIVER = Path(__file__).parent / "inside" / "driver.py"
_LONGEST_SECONDS = 4 * 3600.0
"""A box lives no longer, whatever its session does."""
_SESSION_CPU_SECONDS = 3_600
"""CPU time of the interpreter over its whole life; each call has the sandbox's own limit besides."""
_GRACE_SECONDS = 5.0
"""Beyond a call's own limit, for the driver to interrupt it and clear up."""
_FILE_SECONDS = 30.0
_MOST_RECORDS = 10_000
"""Sessions that hold no box yet are only records."""
_MOST_RECORDS_PER_TENANT = 1_000
_REAPS_PER_IDLE = 20


class ToolMetrics:
    """What the tool service counts."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.boxes = Gauge("hone_tool_boxes", "Sandbox sessions that hold a box", registry=registry)
        self.calls = Counter("hone_tool_calls", "Calls, by tool and outcome", ("tool", "outcome"), registry=registry)
        self.seconds = Histogram(
            "hone_tool_seconds", "Seconds of one call, waiting for its session included", ("tool",), registry=registry
        )
        self.refused = Counter("hone_tool_refused", "Calls refused because all boxes are taken", registry=registry)


class Session:
    """One tenant's box; mutable, owned by ToolSessions."""

    def __init__(self, session_id: str, tenant: str, now: float) -> None:
        self.id = session_id
        self.tenant = tenant
        self.used_at = now
        self.lock = asyncio.Lock()
        self.holds_box = False
        self.lost = False
        """Its box was lost: what it held is gone."""
        self.box: Box | None = None
        self.talk: Conversation | None = None
        self.box_stack = AsyncExitStack()
        self.talk_stack = AsyncExitStack()


class ToolSessions:
    """Creates, runs, expires sessions."""

    def __init__(
        self,
        *,
        runtime: Runtime,
        worker: WorkerSection,
        sandbox: SandboxSection,
        registry: CollectorRegistry,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``runtime`` is started and stopped by its owner; ``clock`` counts seconds."""
        self._runtime = runtime
        self._worker = worker
        self._sandbox = sandbox
        self._metrics = ToolMetrics(registry)
        self._clock = clock
        self._sessions: dict[str, Session] = {}
        self._reaper: asyncio.Task[None] | None = None
        self._driver = ""

    async def start(self) -> None:
        """Begin to expire idle sessions."""
        self._driver = await asyncio.to_thread(_DRIVER.read_text)
        self._reaper = asyncio.create_task(self._reap(), name="tool sessions")

    async def stop(self) -> None:
        """Close every session."""
        if self._reaper is not None:
            self._reaper.cancel()
            await asyncio.gather(self._reaper, return_exceptions=True)
            self._reaper = None
        sessions, self._sessions = list(self._sessions.values()), {}
        await asyncio.gather(*(self._close_box(session) for session in sessions))

    @property
    def load(self) -> Load:
        """How full this worker is."""
        boxes = self._boxes()
        return Load(sessions=len(self._sessions), boxes=boxes, free=max(0, self._worker.tools_sessions - boxes))

    def create(self, tenant: str, session_id: str | None = None) -> Session:
        """A new session, without a box yet; the one with this id where the tenant has it.

        Raises RateLimited, and NotFound for another tenant's id.
        """
        if session_id in self._sessions:
            return self.get(tenant, session_id)
        if sum(item.tenant == tenant for item in self._sessions.values()) >= _MOST_RECORDS_PER_TENANT:
            raise RateLimited(
                f"this tenant already has {_MOST_RECORDS_PER_TENANT} tool sessions",
                hint=f"use an open one again, or wait {self._worker.tools_idle_seconds:g} s for one to be removed",
            )
        if len(self._sessions) >= _MOST_RECORDS:
            raise RateLimited("too many tool sessions are open", hint="try again in a minute")
        session = Session(session_id or secrets.token_urlsafe(18), tenant, self._clock())
        self._sessions[session.id] = session
        return session

    def get(self, tenant: str, session_id: str) -> Session:
        """A live session of this tenant. Raises NotFound, for another tenant's too."""
        session = self._sessions.get(session_id)
        if session is None or not secrets.compare_digest(session.tenant.encode(), tenant.encode()):
            raise NotFound(
                "the container does not exist or has expired",
                hint=f"one is removed after {self._worker.tools_idle_seconds:g} s without use; start a new one",
            )
        return session

    async def delete(self, session: Session) -> None:
        """End a session and whatever runs in it."""
        self._sessions.pop(session.id, None)
        await self._close_box(session)

    async def expire(self) -> int:
        """Remove sessions that have been idle for too long; how many were."""
        oldest = self._clock() - self._worker.tools_idle_seconds
        idle = [item for item in self._sessions.values() if item.used_at < oldest and not item.lock.locked()]
        for session in idle:
            self._sessions.pop(session.id, None)
        await asyncio.gather(*(self._close_box(session) for session in idle))
        return len(idle)

    async def run(self, session: Session, call: RunCall) -> RunDone:
        """Run one call to its end. Raises RateLimited, SandboxError; what the code does is a result."""
        seconds = min(call.timeout_seconds or self._sandbox.wall_seconds, self._sandbox.wall_seconds)
        request = {
            "op": "python" if call.tool == "code_interpreter" else "shell",
            "code": call.code,
            "command": call.command,
            "seconds": seconds,
            "cpu_seconds": self._sandbox.cpu_seconds,
            "output_bytes": self._sandbox.output_bytes,
        }
        if "\0" in call.command:
            raise InvalidRequest("a command cannot hold a NUL character", param="command")
        started = self._clock()
        try:
            async with self._using(session):
                lost, session.lost = session.lost, False
                done = await self._run(session, request, seconds)
        except SandboxError:
            self._metrics.calls.labels(call.tool, "sandbox_error").inc()
            raise
        self._metrics.calls.labels(call.tool, done.outcome).inc()
        self._metrics.seconds.labels(call.tool).observe(self._clock() - started)
        return done.model_copy(update={"files_lost": True, "variables_lost": True}) if lost else done

    async def read_file(self, session: Session, path: str) -> bytes:
        """A file's content. Raises NotFound, InvalidRequest, SandboxError."""
        request = {"op": "read", "path": _plain(path), "max_bytes": MOST_FILE_BYTES}
        reply = await self._file(session, request)
        try:
            return base64.b64decode(str(reply["data"]), validate=True)
        except (KeyError, ValueError) as error:
            raise SandboxError(f"the box sent no file: {error}") from error

    async def write_file(self, session: Session, path: str, data: bytes) -> None:
        """Create or replace a file. Raises InvalidRequest, SandboxError."""
        if len(data) > MOST_FILE_BYTES:
            raise InvalidRequest(f"a file may have {MOST_FILE_BYTES} bytes", param="path")
        await self._file(session, {"op": "write", "path": _plain(path), "data": base64.b64encode(data).decode()})

    async def _file(self, session: Session, request: dict[str, Any]) -> dict[str, Any]:
        async with self._using(session):
            try:
                reply = await self._ask(session, request, _FILE_SECONDS)
            except ConversationEnded as error:
                await self._after_end(session, error.result)
                raise SandboxError(f"the file operation was ended: {error.message}") from error
        if "errno" in reply:
            message = f"{request['path']}: {reply.get('message', 'cannot be used')}"
            raise NotFound(message) if reply["errno"] == _NO_SUCH_FILE else InvalidRequest(message, param="path")
        return reply

    def _using(self, session: Session) -> "_Using":
        return _Using(session, self._clock)

    async def _run(self, session: Session, request: dict[str, Any], seconds: float) -> RunDone:
        try:
            reply = await self._ask(session, request, seconds + _GRACE_SECONDS)
        except ConversationEnded as error:
            return await self._after_end(session, error.result)
        return _read_reply(reply)

    async def _ask(self, session: Session, request: dict[str, Any], seconds: float) -> dict[str, Any]:
        """Raises ConversationEnded when the driver is gone, SandboxError when the box is."""
        talk = await self._talk(session)
        line = await talk.ask(json.dumps(request), wall_seconds=seconds)
        try:
            reply = json.loads(line)
        except ValueError as error:
            await self._lose(session)
            raise SandboxError("the driver in the box sent no JSON") from error
        if not isinstance(reply, dict):
            await self._lose(session)
            raise SandboxError("the driver in the box sent no object")
        if reply.get("outcome") == Outcome.KILLED.value:
            await talk.settle()
        return reply

    async def _talk(self, session: Session) -> Conversation:
        """The session's driver, started where there is none."""
        if session.talk is not None:
            if session.talk.alive:
                return session.talk
            await self._close_talk(session)
        if session.box is None:
            await self._start_box(session)
        assert session.box is not None
        driver = f"{session.box.readonly_folder}/driver.py"
        try:
            session.talk = await session.talk_stack.enter_async_context(
                session.box.converse(["python3", "-I", "-X", "utf8", driver], most_bytes=MOST_ANSWER_BYTES)
            )
        except SandboxError:
            await self._lose(session)
            raise
        return session.talk

    async def _start_box(self, session: Session) -> None:
        if self._sessions.get(session.id) is not session:
            raise NotFound("the container was removed")
        self._admit(session)
        session.holds_box = True
        spec = BoxSpec(
            readonly_files={"driver.py": self._driver},
            cpu_seconds=_SESSION_CPU_SECONDS,
            ttl_seconds=_LONGEST_SECONDS,
        )
        try:
            session.box = await session.box_stack.enter_async_context(self._runtime.box(spec))
        except BaseException:
            session.holds_box = False
            raise
        finally:
            self._metrics.boxes.set(self._boxes())
        if self._sessions.get(session.id) is not session:
            await self._close_box(session)
            raise NotFound("the container was removed")

    def _admit(self, session: Session) -> None:
        of_tenant = sum(item.holds_box for item in self._sessions.values() if item.tenant == session.tenant)
        if of_tenant >= self._worker.tools_sessions_per_tenant:
            message, key = f"this tenant already has {of_tenant} containers in use", "tools_sessions_per_tenant"
        elif self._boxes() >= self._worker.tools_sessions:
            message, key = "all containers of this worker are in use", "tools_sessions"
        else:
            return
        self._metrics.refused.inc()
        raise RateLimited(
            message,
            hint=f"use an open one again, wait {self._worker.tools_idle_seconds:g} s for an idle one to be removed, "
            f"or raise worker.{key}",
        )

    def _boxes(self) -> int:
        return sum(item.holds_box for item in self._sessions.values())

    async def _after_end(self, session: Session, result: ExecResult) -> RunDone:
        """The driver ended: the code's doing, or the sandbox's."""
        await self._close_talk(session)
        if result.infrastructure:
            await self._lose(session)
            raise SandboxError(f"the container failed: {result.stderr.strip() or result.outcome.value}")
        # The driver itself only ends well when its input does: everything else is what code did to it.
        outcome = Outcome.KILLED if result.outcome in (Outcome.OK, Outcome.NONZERO) else result.outcome
        return RunDone(outcome=outcome.value, stderr=result.stderr, variables_lost=True)

    async def _lose(self, session: Session) -> None:
        """Give the box up; the next call gets a fresh one and is told."""
        session.lost = True
        log.warning("tool_session_lost", session_id=session.id, tenant=session.tenant)
        await self._close_box(session)

    async def _close_talk(self, session: Session) -> None:
        session.talk = None
        stack, session.talk_stack = session.talk_stack, AsyncExitStack()
        await stack.aclose()

    async def _close_box(self, session: Session) -> None:
        await self._close_talk(session)
        session.box = None
        stack, session.box_stack = session.box_stack, AsyncExitStack()
        try:
            await stack.aclose()
        finally:
            session.holds_box = False
            self._metrics.boxes.set(self._boxes())

    async def _reap(self) -> None:
        while True:
            await asyncio.sleep(self._worker.tools_idle_seconds / _REAPS_PER_IDLE)
            try:
                await self.expire()
            except Exception:
                log.exception("tool_sessions_not_expired")


_NO_SUCH_FILE = 2


class _Using:
    """Holds a session for one call, and notes when it was used."""

    def __init__(self, session: Session, clock: Callable[[], float]) -> None:
        self._session = session
        self._clock = clock

    async def __aenter__(self) -> None:
        self._session.used_at = self._clock()
        await self._session.lock.acquire()

    async def __aexit__(self, *_: object) -> None:
        self._session.used_at = self._clock()
        self._session.lock.release()


def _read_reply(reply: dict[str, Any]) -> RunDone:
    if "errno" in reply:
        raise SandboxError(f"the call could not be started: {reply.get('message')}")
    changed = tuple(ChangedFile(path=str(path), bytes=int(size)) for path, size in reply.pop("files", ()))
    lost = bool(reply.pop("restarted", False))
    try:
        return RunDone(**reply, files=changed, variables_lost=lost)
    except (ValidationError, TypeError) as error:
        raise SandboxError("the driver's answer makes no sense") from error


def _plain(path: str) -> str:
    parts = path.split("/")
    if not path or ".." in parts or "" in parts or "\0" in path:
        raise InvalidRequest("the path must be relative and stay in the work folder", param="path")
    return path
