"""``code_interpreter`` and ``shell``: a client of the tool services of workers, over HTTP."""

import asyncio
import mimetypes
import random
import secrets
import time
from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard
from urllib.parse import quote

import aiohttp
import msgspec
import structlog

from core.errors import HoneError, NotFound, RateLimited, SandboxError
from gateway.hosted_tools.base import CommandOutcome, ProducedFile, ToolDefinition, ToolOutcome
from gateway.hosted_tools.containers import Container, seal, unknown_container, unseal

log = structlog.get_logger(__name__)

CODE_INTERPRETER = ToolDefinition(
    kind="code_interpreter",
    name="code_interpreter",
    description=(
        "Runs Python 3 code in a sandbox and returns what it prints and the value of its last expression. Variables "
        "and the files of the current folder persist between calls. There is no network."
    ),
    parameters={
        "type": "object",
        "properties": {"code": {"type": "string", "description": "The Python code to run."}},
        "required": ["code"],
        "additionalProperties": False,
    },
)
SHELL = ToolDefinition(
    kind="shell",
    name="shell",
    description=(
        "Runs shell commands in a sandbox, one after another, and returns their output. The files of the current "
        "folder persist between calls, background processes do not. There is no network."
    ),
    parameters={
        "type": "object",
        "properties": {
            "commands": {"type": "array", "items": {"type": "string"}, "description": "Command lines for /bin/sh."},
            "timeout_ms": {"type": "integer", "description": "Longest time for each command, in milliseconds."},
            "max_output_length": {"type": "integer", "description": "Most characters of output of each command."},
        },
        "required": ["commands"],
        "additionalProperties": False,
    },
)

_CONNECT_SECONDS = 5.0
_ANSWER_SECONDS = 60.0
"""Beyond what the code itself may take: starting a box, waiting for the session's other calls."""
_QUICK_SECONDS = 3.0
"""For questions that run nothing."""
_MOST_ANSWER_BYTES = 8 << 20
_MOST_TEXT = 50_000
_MOST_COMMANDS = 32
_MOST_FILES = 8
_MOST_FILE_BYTES = 1 << 20
_MOST_FILES_BYTES = 4 << 20
_IMAGES = {
    ".png": "image/png",
    ".jpg": "image/jpeg",
    ".jpeg": "image/jpeg",
    ".gif": "image/gif",
    ".webp": "image/webp",
}
_MS = 1_000.0
_MOST_MS = 24 * 3_600_000.0
_EXPLAINED = {
    "timeout": "The call ran out of time and was stopped.",
    "oom": "The call used too much memory and was stopped.",
    "output_limit": "The call wrote far too much output and was stopped.",
    "killed": "The call was killed.",
}


class ToolServices:
    """The tool services that this gateway knows, and the sessions that are in them."""

    def __init__(self, *, urls: Sequence[str], key: str, wall_seconds: float) -> None:
        """``wall_seconds`` is the sandbox's limit of one call."""
        self._urls = [url.rstrip("/") for url in urls]
        self._key = key
        self._wall_seconds = wall_seconds
        self._client: aiohttp.ClientSession | None = None

    async def start(self) -> None:
        """Open the pool."""
        self._client = aiohttp.ClientSession(
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_SECONDS),
            headers={"authorization": f"Bearer {self._key}"},
            cookie_jar=aiohttp.DummyCookieJar(),
        )

    async def stop(self) -> None:
        """Close all connections."""
        if self._client is not None:
            await self._client.close()
            self._client = None

    async def choose(self, tenant: str) -> str:
        """The id of a container that ``create`` is to make, on the emptiest service. Raises SandboxError.

        Nothing is made yet: most responses that declare a tool never call it.
        """
        if not self._urls:
            raise SandboxError("no tool service is configured", hint="see gateway.tools_url")
        loads = await asyncio.gather(*(self._load(url) for url in self._urls))
        # Of several that are as empty not always the same: what was only chosen does not show in the load.
        answers = [(full, random.random(), url) for full, url in filter(None, loads)]
        if not answers:
            raise SandboxError("no tool service answers", hint="see gateway.tools_url and worker.tools_key")
        url = min(answers)[2]
        return seal(Container(secrets.token_urlsafe(18), url), tenant=tenant, key=self._key)

    async def create(self, container_id: str, tenant: str) -> None:
        """Make a chosen container; one that is there stays. Raises NotFound, RateLimited, SandboxError."""
        container = unseal(container_id, tenant=tenant, key=self._key)
        body = {"tenant": tenant, "session_id": container.session_id}
        await self._json("POST", f"{container.url}/sessions", tenant, body=body, seconds=_QUICK_SECONDS)

    async def find(self, container_id: str, tenant: str) -> None:
        """Raise NotFound unless this is a live container of the tenant."""
        container = unseal(container_id, tenant=tenant, key=self._key)
        try:
            url = f"{container.url}/sessions/{quote(container.session_id, safe='')}"
            await self._json("GET", url, tenant, seconds=_QUICK_SECONDS)
        except (NotFound, SandboxError) as error:
            log.info("container_not_found", tenant=tenant, error=str(error))
            raise unknown_container() from error

    async def run(self, container_id: str, tenant: str, call: Mapping[str, Any]) -> dict[str, Any]:
        """The service's answer to one call. Raises NotFound, RateLimited, SandboxError."""
        container = unseal(container_id, tenant=tenant, key=self._key)
        url = f"{container.url}/sessions/{quote(container.session_id, safe='')}/run"
        return await self._json("POST", url, tenant, body=call)

    async def read(self, container_id: str, tenant: str, path: str) -> bytes:
        """A file of a container. Raises NotFound, SandboxError."""
        container = unseal(container_id, tenant=tenant, key=self._key)
        url = f"{container.url}/sessions/{quote(container.session_id, safe='')}/files/{quote(path)}"
        return await self._bytes("GET", url, tenant, None)

    async def _load(self, url: str) -> tuple[float, str] | None:
        """How full a service is, by boxes and sessions, and its own address; None: it does not answer."""
        try:
            load = await self._json("GET", f"{url}/load", "", seconds=_QUICK_SECONDS)
            full = float(load["boxes"]) + float(load["sessions"]) / _MS
        except (HoneError, KeyError, TypeError, ValueError) as error:
            log.warning("tool_service_away", url=url, error=str(error))
            return None
        return full, str(load.get("url") or url).rstrip("/")

    async def _json(
        self,
        method: str,
        url: str,
        tenant: str,
        *,
        body: Mapping[str, Any] | None = None,
        seconds: float | None = None,
    ) -> dict[str, Any]:
        data = await self._bytes(method, url, tenant, body, seconds)
        return _object(data, url)

    async def _bytes(
        self, method: str, url: str, tenant: str, body: Mapping[str, Any] | None, seconds: float | None = None
    ) -> bytes:
        """``seconds`` for the whole answer; None: as long as code may run."""
        if self._client is None:
            raise SandboxError("the gateway is not started")
        if not self._key:
            raise SandboxError("there is no key for the tool service", hint="set worker.tools_key")
        try:
            async with asyncio.timeout(seconds or self._wall_seconds + _ANSWER_SECONDS):
                async with self._client.request(
                    method, url, json=body, headers={"x-hone-tenant": tenant}, allow_redirects=False
                ) as answer:
                    data = await _read(answer)
                    status = answer.status
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            raise SandboxError(f"the tool service does not answer: {type(error).__name__}") from error
        if status < 300:
            return data
        message = str((_object(data, url).get("error") or {}).get("message", f"HTTP status {status}"))
        if status == 404:
            raise NotFound(message)
        if status == 429:
            raise RateLimited(message)
        raise SandboxError(message)


class SandboxTools:
    """``code_interpreter`` and ``shell`` of one response, in one container."""

    def __init__(self, *, services: ToolServices, tenant: str, container_id: str, made: bool) -> None:
        """``container_id`` is empty when no service answered: the first call asks again.

        ``made`` is False for a container that was only chosen: the first call makes it.
        """
        self._services = services
        self._tenant = tenant
        self._made = made
        self.container_id = container_id

    async def code_interpreter(self, arguments: Mapping[str, Any]) -> ToolOutcome:
        """Run ``{"code": …}``."""
        code = arguments.get("code")
        if not isinstance(code, str):
            return _malformed("'code' must be a string.")
        started = time.monotonic()
        try:
            done = await self._call({"tool": "code_interpreter", "code": code})
        except HoneError as error:
            return _unavailable(error, started)
        files = await self._files(done)
        return ToolOutcome(text=_tell(done), files=files, seconds=time.monotonic() - started)

    async def shell(self, arguments: Mapping[str, Any]) -> ToolOutcome:
        """Run ``{"commands": […]}`` in order; each is told on its own."""
        commands = arguments.get("commands")
        if isinstance(commands, str):
            commands = [commands]
        if not _texts(commands):
            return _malformed(f"'commands' must be a list of 1 to {_MOST_COMMANDS} strings.")
        seconds = _number(arguments.get("timeout_ms"), _MOST_MS)
        longest = _number(arguments.get("max_output_length"), _MOST_ANSWER_BYTES)
        started = time.monotonic()
        outcomes: list[CommandOutcome] = []
        told: list[str] = []
        for command in commands:
            call: dict[str, Any] = {"tool": "shell", "command": command}
            if seconds is not None:
                call["timeout_seconds"] = seconds / _MS
            try:
                done = await self._call(call)
            except HoneError as error:
                failed = _unavailable(error, started)
                text = "\n".join([*told, failed.text])
                return ToolOutcome(text, failed.error, commands=tuple(outcomes), seconds=failed.seconds)
            outcome = _command(done, _MOST_TEXT if longest is None else int(longest))
            outcomes.append(outcome)
            told.append(_tell({**done, "stdout": outcome.stdout, "stderr": outcome.stderr}))
        text = told[0] if len(told) == 1 else "\n".join(f"$ {c}\n{t}" for c, t in zip(commands, told, strict=True))
        return ToolOutcome(_cut(text), commands=tuple(outcomes), seconds=time.monotonic() - started)

    async def _call(self, call: Mapping[str, Any]) -> dict[str, Any]:
        if not self.container_id:
            self.container_id = await self._services.choose(self._tenant)
        if not self._made:
            await self._services.create(self.container_id, self._tenant)
            self._made = True
        return await self._services.run(self.container_id, self._tenant, call)

    async def _files(self, done: Mapping[str, Any]) -> tuple[ProducedFile, ...]:
        """What the call wrote, images first, as far as it is small; the rest stays in the container."""
        found = [(str(item["path"]), int(item["bytes"])) for item in done.get("files") or ()]
        found.sort(key=lambda item: (not media_type(item[0]).startswith("image/"), item[0]))
        files: list[ProducedFile] = []
        left = _MOST_FILES_BYTES
        for path, size in found[:_MOST_FILES]:
            if size > min(left, _MOST_FILE_BYTES):
                continue
            try:
                data = await self._services.read(self.container_id, self._tenant, path)
            except HoneError as error:
                log.info("tool_file_not_read", error=str(error))
                continue
            left -= len(data)
            files.append(ProducedFile(path, media_type(path), data))
        return tuple(files)


def media_type(path: str) -> str:
    """Of a file by its name. Only pixel images count as images: others can carry scripts."""
    suffix = "." + path.rpartition(".")[2].lower()
    if suffix in _IMAGES:
        return _IMAGES[suffix]
    guessed = mimetypes.guess_type(path)[0] or "application/octet-stream"
    return "text/plain" if guessed.startswith(("image/", "text/")) else guessed


async def _read(answer: aiohttp.ClientResponse) -> bytes:
    data = bytearray()
    async for chunk in answer.content.iter_any():
        data += chunk
        if len(data) > _MOST_ANSWER_BYTES:
            raise SandboxError("the tool service's answer is too long")
    return bytes(data)


def _object(data: bytes, url: str) -> dict[str, Any]:
    try:
        value = msgspec.json.decode(data)
    except msgspec.DecodeError as error:
        raise SandboxError(f"{url} sent no JSON") from error
    if not isinstance(value, dict):
        raise SandboxError(f"{url} sent no JSON object")
    return value


def _texts(commands: object) -> TypeGuard[list[str]]:
    return (
        isinstance(commands, list)
        and 0 < len(commands) <= _MOST_COMMANDS
        and all(isinstance(command, str) for command in commands)
    )


def _number(value: object, most: float) -> float | None:
    """A positive number, at most ``most``; None for anything else. Models write all sorts."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not value > 0:
        return None
    return float(min(value, most))


def _command(done: Mapping[str, Any], longest: int) -> CommandOutcome:
    code = done.get("exit_code")
    if not isinstance(code, int):
        # A signal has no exit code; a shell would say 128 and more.
        code = None if done.get("outcome") == "timeout" else 137
    stdout = str(done.get("stdout", ""))[:longest]
    return CommandOutcome(stdout, str(done.get("stderr", ""))[: max(0, longest - len(stdout))], code)


def _tell(done: Mapping[str, Any]) -> str:
    """What the model is told: stdout, then stderr, then how it ended if not well."""
    outcome = str(done.get("outcome"))
    ending = _EXPLAINED.get(outcome, "")
    if outcome == "nonzero":
        ending = f"[exit code {done.get('exit_code')}]"
    lost = ""
    if done.get("files_lost"):
        lost = "[The container had been lost: this ran in a fresh one, earlier files and variables are gone.]"
    elif done.get("variables_lost"):
        lost = "[Python was restarted: variables are gone, files are kept.]"
    names = [str(item["path"]) for item in done.get("files") or ()]
    written = f"[files written: {', '.join(names)}]" if names else ""
    cut = "\n[output cut here: too long]"
    stdout = str(done.get("stdout", "")) + (cut if done.get("stdout_truncated") else "")
    stderr = str(done.get("stderr", "")) + (cut if done.get("stderr_truncated") else "")
    parts = [_cut(part.rstrip("\n")) for part in (stdout, stderr, ending, lost, written) if part.strip()]
    return "\n".join(parts) or "(no output)"


def _cut(text: str) -> str:
    return text if len(text) <= _MOST_TEXT else f"{text[:_MOST_TEXT]}\n[output cut here: too long]"


def _malformed(advice: str) -> ToolOutcome:
    return ToolOutcome(text=f"Malformed call: {advice}", error=f"malformed call: {advice}")


def _unavailable(error: HoneError, started: float) -> ToolOutcome:
    message = error.message if error.hint is None else f"{error.message}; {error.hint}"
    if not isinstance(error, RateLimited | NotFound):
        log.warning("sandbox_tool_failed", error=message)
    return ToolOutcome(
        text=f"The tool is unavailable; nothing is wrong with the call itself. ({message})",
        error=message,
        seconds=time.monotonic() - started,
    )
