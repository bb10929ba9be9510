"""Fakes around the sandbox: a gateway that speaks OpenAI from a script, and a runtime without isolation.

``DirectRuntime`` runs code as an ordinary child process of the test, so only tests' own code may run in it.
"""

import asyncio
import resource
import shutil
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import IO, Any

from aiohttp import web

from core.noun import now
from core.policy import Base, Policy, PolicySpan, ServingStatus
from core.turn import Timing, Turn
from core.variant import parse_model_name
from sandbox.runtimes.base import Box, BoxSpec, ExecResult, Outcome
from store.events import TURNS
from store.store import Store

_OUTPUT_BYTES = 65_536
_FILE_BYTES = 4_000_000


@dataclass(frozen=True)
class StubAnswer:
    """What the stub gateway answers to one call."""

    text: str | None = ""
    tool_calls: tuple[dict[str, Any], ...] = ()
    finish_reason: str = "stop"
    status: int = 200
    error: dict[str, Any] = field(default_factory=dict)
    delay_seconds: float = 0.0
    durable: bool = True
    """Whether the Turn is written to the store."""
    version: int | None = None
    """The version that the answer claims; None: the one that was asked for."""


Script = Callable[[dict[str, Any], int], StubAnswer]
"""Body of the request and its number (from 0) → answer."""


@dataclass(frozen=True)
class StubCall:
    """One request that the stub gateway got."""

    body: dict[str, Any]
    headers: Mapping[str, str]


class StubGateway:
    """A real HTTP server with the gateway's chat route; Turns go to ``store``, once per idempotency key."""

    def __init__(self, script: Script, *, store: Store | None = None, tenant_id: str = "ten_test") -> None:
        self._script = script
        self._store = store
        self._tenant_id = tenant_id
        self._runner: web.AppRunner | None = None
        self._port = 0
        self.calls: list[StubCall] = []

    @property
    def url(self) -> str:
        """Base URL, once started."""
        return f"http://127.0.0.1:{self._port}"

    async def start(self) -> None:
        """Listen on a free port."""
        app = web.Application()
        app.router.add_post("/v1/chat/completions", self._chat)
        self._runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self._port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        """Stop listening."""
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def _chat(self, request: web.Request) -> web.Response:
        body = await request.json()
        number = len(self.calls)
        self.calls.append(StubCall(body=body, headers=_lower(request.headers)))
        answer = self._script(body, number)
        if answer.delay_seconds:
            await asyncio.sleep(answer.delay_seconds)
        if answer.status != 200:
            return web.json_response({"error": answer.error}, status=answer.status, headers={"retry-after-ms": "1"})
        message: dict[str, Any] = {"role": "assistant", "content": answer.text}
        if answer.tool_calls:
            message["tool_calls"] = list(answer.tool_calls)
        episode_id = request.headers["x-hone-episode-id"]
        key = request.headers["idempotency-key"]
        turn_id = f"turn_{key.replace(':', '_')}"
        version = parse_model_name(body["model"]).version or 0
        if answer.durable:
            await self._record(turn_id, episode_id, key, body, message)
        return web.json_response(
            {
                "id": turn_id,
                "object": "chat.completion",
                "created": int(time.time()),
                "model": body["model"],
                "choices": [{"index": 0, "message": message, "finish_reason": answer.finish_reason}],
            },
            headers={
                "x-hone-turn-id": turn_id,
                "x-hone-policy-version": str(version if answer.version is None else answer.version),
            },
        )

    async def _record(
        self, turn_id: str, episode_id: str, key: str, body: dict[str, Any], message: dict[str, Any]
    ) -> None:
        if self._store is None:
            return
        name = parse_model_name(body["model"])
        turn = Turn(
            id=turn_id,
            episode_id=episode_id,
            index=int(key.rpartition(":")[2]),
            tenant_id=self._tenant_id,
            policy=name.name,
            policy_spans=(PolicySpan(version=name.version or 0),),
            variant=name.variant,
            deployment_id="dep_stub",
            messages=tuple(body["messages"]),
            response=message,
            prompt_ids=(1, 2, 3),
            output_ids=(4, 5),
            output_logprobs=(-0.1, -0.2),
            timing=Timing(started_at=now(), total_seconds=0.01),
            request_id=f"req_{turn_id}",
            idempotency_key=key,
            trainable="x-hone-train" not in self.calls[-1].headers,
        )
        async with self._store.transaction() as tx:
            await tx.turns.add_many([turn])
        await self._store.events.publish(TURNS)


class DirectRuntime:
    """Makes boxes that are temporary folders; commands are plain child processes with a time limit."""

    name = "direct"

    def __init__(self, *, broken: bool = False) -> None:
        self.broken = broken
        """While true, every command ends with ``infra_error``."""
        self.boxes = 0
        """How many boxes were made."""

    async def start(self) -> None:
        """Nothing to prove."""

    async def stop(self) -> None:
        """Nothing is left: boxes clean up after themselves."""

    @asynccontextmanager
    async def box(self, spec: BoxSpec | None = None) -> AsyncIterator[Box]:
        """A fresh folder, removed on exit."""
        self.boxes += 1
        folder = Path(await asyncio.to_thread(tempfile.mkdtemp, prefix="direct-box-"))
        try:
            box = DirectBox(folder, spec or BoxSpec(), self)
            for path, text in box.spec.files.items():
                await box.write(path, text)
            yield box
        finally:
            await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)


class DirectBox:
    """One folder."""

    def __init__(self, folder: Path, spec: BoxSpec, runtime: DirectRuntime) -> None:
        self._folder = folder
        self._runtime = runtime
        self.spec = spec

    @property
    def work_folder(self) -> str:
        """The folder itself."""
        return str(self._folder)

    @property
    def readonly_folder(self) -> str:
        """The same folder: nothing here is read-only."""
        return str(self._folder)

    async def exec(
        self,
        argv: Sequence[str],
        *,
        stdin: str | None = None,
        wall_seconds: float | None = None,
        env: Mapping[str, str] | None = None,
    ) -> ExecResult:
        """Run a child process and wait for it."""
        if self._runtime.broken:
            return ExecResult(outcome=Outcome.INFRA_ERROR, stderr="the fake is broken", backend="direct")
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            started = time.monotonic()
            process = await asyncio.create_subprocess_exec(
                *argv,
                cwd=self._folder,
                env=dict(env or {}) | {"PATH": "/usr/bin:/bin"},
                stdin=asyncio.subprocess.PIPE,
                stdout=out,
                stderr=err,
                preexec_fn=partial(_limit, self.spec.cpu_seconds or 10),
            )
            try:
                async with asyncio.timeout(wall_seconds or self.spec.wall_seconds or 10.0):
                    await process.communicate((stdin or "").encode())
            except TimeoutError:
                process.kill()
                await process.wait()
                return ExecResult(outcome=Outcome.TIMEOUT, backend="direct")
            return ExecResult(
                outcome=Outcome.OK if process.returncode == 0 else Outcome.NONZERO,
                exit_code=process.returncode,
                stdout=_captured(out),
                stderr=_captured(err),
                wall_seconds=time.monotonic() - started,
                backend="direct",
            )

    async def python(
        self,
        code: str,
        *,
        arguments: Sequence[str] = (),
        stdin: str | None = None,
        wall_seconds: float | None = None,
        env: Mapping[str, str] | None = None,
    ) -> ExecResult:
        """``python3 -I -c code``."""
        argv = ("python3", "-I", "-c", code, *arguments)
        return await self.exec(argv, stdin=stdin, wall_seconds=wall_seconds, env=env)

    async def shell(
        self,
        command: str,
        *,
        stdin: str | None = None,
        wall_seconds: float | None = None,
        env: Mapping[str, str] | None = None,
    ) -> ExecResult:
        """``/bin/sh -c command``."""
        return await self.exec(("/bin/sh", "-c", command), stdin=stdin, wall_seconds=wall_seconds, env=env)

    async def read(self, path: str, max_bytes: int) -> bytes:
        """The content of a file."""
        data = await asyncio.to_thread((self._folder / path).read_bytes)
        if len(data) > max_bytes:
            raise OSError(f"{path} is larger than {max_bytes} bytes")
        return data

    async def write(self, path: str, data: bytes | str) -> None:
        """Create or replace a file."""
        target = self._folder / path
        await asyncio.to_thread(target.parent.mkdir, parents=True, exist_ok=True)
        await asyncio.to_thread(target.write_bytes, data.encode() if isinstance(data, str) else data)

    async def list(self, path: str = ".") -> "list[str]":
        """Relative paths of all files."""
        found = await asyncio.to_thread(lambda: sorted((self._folder / path).rglob("*")))
        return [item.relative_to(self._folder).as_posix() for item in found if item.is_file()]

    async def close(self) -> None:
        """The runtime removes the folder."""


def _limit(cpu_seconds: int) -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_seconds, cpu_seconds))
    resource.setrlimit(resource.RLIMIT_FSIZE, (_FILE_BYTES, _FILE_BYTES))


def _captured(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read(_OUTPUT_BYTES).decode(errors="replace")


def _lower(headers: Mapping[str, str]) -> dict[str, str]:
    return {name.lower(): value for name, value in headers.items()}


async def serve_versions(store: Store, policy: str, newest: int) -> None:
    """Register versions 0 to ``newest`` of a Policy as live on the fleet."""
    async with store.transaction() as tx:
        await tx.bases.put(Base(name="base", path="/base", fingerprint="f"))
        await tx.policies.add(Policy(name=policy, base="base"))
        for _ in range(newest + 1):
            minted = await tx.versions.mint(
                policy, kind="lora", origin="grpo", parent_version=None, checkpoint_id=None
            )
            await tx.versions.update(minted.model_copy(update={"serving": ServingStatus.LIVE}))
