"""Tools of MCP servers, by the official client library. Sources: modelcontextprotocol.io, OpenAI's ``mcp`` tool.

Only HTTP transports: a server that would have to be started as a command never runs on the gateway's machine. What
callers send to their servers (headers, tokens, the URL's query) is neither logged nor kept.
"""

import asyncio
import hashlib
import json
import re
import time
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any

import httpx2
import structlog

from core.errors import InvalidRequest
from gateway.hosted_tools.addresses import Server, allowed_server
from gateway.hosted_tools.base import ServerListing, ToolDefinition, ToolOutcome
from gateway.hosted_tools.guarded_http import GuardedTransport, Refused, Resolve, resolve

log = structlog.get_logger(__name__)

MOST_TEXT = 50_000
"""Characters of a result that the model is told."""
_MOST_BYTES = 4 << 20
_MOST_TOOLS = 128
_MOST_PAGES = 20
_MOST_SCHEMA_BYTES = 32_768
_MOST_DESCRIPTION = 4_096
_MOST_HEADERS = 32
_MOST_HEADER_BYTES = 8_192
_LONGEST_NAME = 64
_ERROR_CHARACTERS = 500
_CLOSE_SECONDS = 5.0
_LABEL = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}")
_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_OWN_HEADERS = frozenset(
    {"host", "connection", "content-length", "content-type", "transfer-encoding", "accept", "accept-encoding", "te"}
    | {"upgrade", "proxy-authorization", "mcp-session-id", "mcp-protocol-version", "last-event-id", "expect"}
)
"""Headers that the protocol sets itself."""


@dataclass(frozen=True, slots=True)
class McpDeclaration:
    """A checked ``mcp`` entry of a request's ``tools``."""

    label: str
    server: Server
    headers: Mapping[str, str] = field(repr=False)
    allowed_tools: frozenset[str] | None
    read_only: bool | None


def read_declaration(declaration: Mapping[str, Any], allowed_hosts: Sequence[str], param: str) -> McpDeclaration:
    """Check an ``mcp`` declaration. Raises InvalidRequest, PermissionDenied."""
    label = declaration.get("server_label")
    if not isinstance(label, str) or not _LABEL.fullmatch(label):
        raise InvalidRequest(
            "'server_label' must be 1 to 64 letters, digits, '-' and '_', a letter first",
            param=f"{param}.server_label",
        )
    if declaration.get("connector_id") is not None or declaration.get("server_url") is None:
        raise InvalidRequest("only MCP servers with a 'server_url' can be used here", param=f"{param}.server_url")
    server = allowed_server(declaration["server_url"], allowed_hosts, param=f"{param}.server_url")
    names, read_only = _filter(declaration.get("allowed_tools"), f"{param}.allowed_tools")
    return McpDeclaration(label, server, _headers(declaration, param), names, read_only)


class McpServer:
    """A connection to one server for the length of one response."""

    def __init__(self, declaration: McpDeclaration, *, timeout_seconds: float, resolver: Resolve = resolve) -> None:
        self._declaration = declaration
        self._timeout_seconds = timeout_seconds
        self._resolver = resolver
        self._client: Any = None
        self._stop = asyncio.Event()
        self._ready: asyncio.Future[list[Any]] = asyncio.get_running_loop().create_future()
        self._owner: asyncio.Task[None] | None = None

    async def open(self, taken: set[str]) -> ServerListing:
        """Connect and ask for the tools; a server that fails is a listing with ``error``. Adds to ``taken`` names."""
        # The library's task groups must be left in the task that entered them: each connection has its own.
        self._owner = asyncio.create_task(self._own(), name=f"mcp {self._declaration.label}")
        try:
            async with asyncio.timeout(self._timeout_seconds):
                tools = await asyncio.shield(self._ready)
        except TimeoutError:
            return self._failed(f"the server did not answer within {self._timeout_seconds:g} s")
        except Exception as error:  # noqa: BLE001 - whatever the library raises is this server's failure
            return self._failed(_explain(error))
        label = self._declaration.label
        return ServerListing(label, tuple(_definition(label, tool, taken) for tool in self._wanted(tools)))

    async def call(self, definition: ToolDefinition, arguments: Mapping[str, Any]) -> ToolOutcome:
        """Call a tool; every failure is an outcome with ``error``."""
        started = time.monotonic()
        try:
            async with asyncio.timeout(self._timeout_seconds):
                result = await self._client.call_tool(definition.tool_name, dict(arguments))
            text = _cut(_text_of(result))
            error = (text or "the tool failed without a word") if result.is_error else None
        except TimeoutError:
            text = error = f"The MCP server did not answer within {self._timeout_seconds:g} s."
        except Exception as failure:  # noqa: BLE001 - whatever the library raises is this server's failure
            log.info("mcp_call_failed", host=self._declaration.server.host, kind=type(failure).__name__)
            text = error = f"The MCP server failed: {_explain(failure)}"
        return ToolOutcome(text=text or error or "(no output)", error=error, seconds=time.monotonic() - started)

    async def close(self) -> None:
        """End the connection; never raises."""
        self._stop.set()
        if self._owner is None:
            return
        if self._ready.done():
            await asyncio.wait({self._owner}, timeout=_CLOSE_SECONDS)
        if not self._owner.done():
            self._owner.cancel()
            await asyncio.wait({self._owner}, timeout=_CLOSE_SECONDS)

    async def _own(self) -> None:
        """Hold the connection until it is closed; the first failure goes to whoever waits."""
        failure: BaseException | None = None
        for sse in self._transports():
            try:
                await self._hold(sse)
                return
            except BaseException as error:  # handed on below, or raised again
                task = asyncio.current_task()
                if task is not None and task.cancelling():
                    self._ready.cancel()
                    raise
                failure = failure or error
                if self._ready.done() or _refusal(error) is not None or self._stop.is_set():
                    break
        log.info("mcp_connection_failed", host=self._declaration.server.host, kind=type(failure).__name__)
        if not self._ready.done():
            ours = isinstance(failure, Exception)
            self._ready.set_exception(failure if ours and failure else ConnectionError("the connection broke"))
            self._ready.exception()  # looked at, even when nobody waits any more

    def _transports(self) -> tuple[bool, ...]:
        """Whether to speak the older SSE transport, in the order in which to try: a server says it by its failure."""
        path = self._declaration.server.url.partition("?")[0].rstrip("/")
        return (True, False) if path.endswith("/sse") else (False, True)

    async def _hold(self, sse: bool) -> None:
        from mcp import Client  # noqa: PLC0415 - a second of imports that most gateways never need
        from mcp.client.sse import sse_client  # noqa: PLC0415
        from mcp.client.streamable_http import streamable_http_client  # noqa: PLC0415

        url = self._declaration.server.url
        async with AsyncExitStack() as stack:
            if sse:
                transport: Any = sse_client(url, httpx_client_factory=self._http)
            else:
                http = await stack.enter_async_context(self._http())
                transport = streamable_http_client(url, http_client=http, max_sse_event_size=_MOST_BYTES)
            client = await stack.enter_async_context(
                Client(transport, cache=None, read_timeout_seconds=self._timeout_seconds)
            )
            self._client = client
            tools: list[Any] = []
            cursor: str | None = None
            for _ in range(_MOST_PAGES):
                page = await client.list_tools(cursor=cursor)
                tools += page.tools
                cursor = page.next_cursor
                if cursor is None or len(tools) >= _MOST_TOOLS:
                    break
            self._ready.set_result(tools)
            await self._stop.wait()

    def _http(self, headers: Any = None, timeout: Any = None, auth: httpx2.Auth | None = None) -> httpx2.AsyncClient:
        """A client that reaches this server only; what the library would set is set here."""
        return httpx2.AsyncClient(
            transport=GuardedTransport(self._declaration.server, most_bytes=_MOST_BYTES, resolver=self._resolver),
            headers=dict(self._declaration.headers),
            # Streams may be silent for as long as they like: each call has a time limit of its own.
            timeout=httpx2.Timeout(self._timeout_seconds, read=None),
            trust_env=False,
        )

    def _wanted(self, tools: Sequence[Any]) -> list[Any]:
        declared = self._declaration
        wanted = []
        for tool in tools:
            if declared.allowed_tools is not None and tool.name not in declared.allowed_tools:
                continue
            if declared.read_only is not None and _read_only(tool) is not declared.read_only:
                continue
            if len(json.dumps(tool.input_schema)) > _MOST_SCHEMA_BYTES:
                log.warning("mcp_tool_left_out", host=declared.server.host, reason="schema too large")
                continue
            wanted.append(tool)
        return wanted[:_MOST_TOOLS]

    def _failed(self, why: str) -> ServerListing:
        return ServerListing(self._declaration.label, error=why)


def function_name(label: str, tool: str, taken: set[str]) -> str:
    """A name that a model may call and that is not taken; it is then."""
    plain = re.sub(r"[^A-Za-z0-9_-]", "_", f"{label}_{tool}")
    if len(plain) > _LONGEST_NAME or plain in taken:
        digest = hashlib.sha256(f"{label}\0{tool}".encode()).hexdigest()[:8]
        plain = f"{plain[: _LONGEST_NAME - 9]}_{digest}"
    while plain in taken:
        digest = hashlib.sha256(plain.encode()).hexdigest()[:8]
        plain = f"{plain[: _LONGEST_NAME - 9]}_{digest}"
    taken.add(plain)
    return plain


def _definition(label: str, tool: Any, taken: set[str]) -> ToolDefinition:
    annotations = tool.annotations.model_dump(by_alias=True, exclude_none=True) if tool.annotations else None
    return ToolDefinition(
        kind="mcp",
        name=function_name(label, tool.name, taken),
        description=(tool.description or "")[:_MOST_DESCRIPTION],
        parameters=tool.input_schema,
        server_label=label,
        tool_name=tool.name,
        annotations=annotations,
    )


def _read_only(tool: Any) -> bool:
    return bool(tool.annotations and tool.annotations.read_only_hint)


def _filter(value: Any, param: str) -> tuple[frozenset[str] | None, bool | None]:
    """``allowed_tools``: a list of names, or a filter object."""
    read_only = None
    if isinstance(value, dict):
        value, read_only = value.get("tool_names"), value.get("read_only")
    if value is not None and (not isinstance(value, list) or not all(isinstance(item, str) for item in value)):
        raise InvalidRequest(
            "'allowed_tools' must be a list of tool names, or an object with 'tool_names'", param=param
        )
    if read_only is not None and not isinstance(read_only, bool):
        raise InvalidRequest("'read_only' must be true or false", param=f"{param}.read_only")
    return None if value is None else frozenset(value), read_only


def _headers(declaration: Mapping[str, Any], param: str) -> dict[str, str]:
    given = declaration.get("headers") or {}
    if not isinstance(given, dict) or len(given) > _MOST_HEADERS:
        raise InvalidRequest(f"'headers' must be at most {_MOST_HEADERS} names and texts", param=f"{param}.headers")
    headers: dict[str, str] = {}
    for name, value in given.items():
        if not _sendable(value) or not _HEADER_NAME.fullmatch(name) or name.lower() in _OWN_HEADERS:
            raise InvalidRequest(f"the header '{name[:64]}' cannot be sent", param=f"{param}.headers")
        headers[name.lower()] = value
    token = declaration.get("authorization")
    if token is not None:
        if not _sendable(token):
            raise InvalidRequest("'authorization' must be a plain token", param=f"{param}.authorization")
        if "authorization" in headers:
            raise InvalidRequest("use 'authorization' or that header, not both", param=f"{param}.authorization")
        headers["authorization"] = f"Bearer {token}"
    return headers


def _sendable(value: object) -> bool:
    return isinstance(value, str) and len(value) <= _MOST_HEADER_BYTES and value.isascii() and value.isprintable()


def _text_of(result: Any) -> str:
    parts = []
    for block in result.content:
        if block.type == "text":
            parts.append(block.text)
        elif block.type == "resource" and getattr(block.resource, "text", None) is not None:
            parts.append(block.resource.text)
        else:
            parts.append(f"[{block.type}, not shown]")
    if not parts and result.structured_content is not None:
        parts.append(json.dumps(result.structured_content, ensure_ascii=False))
    return "\n".join(parts)


def _cut(text: str) -> str:
    return text if len(text) <= MOST_TEXT else f"{text[:MOST_TEXT]}\n[output cut here: too long]"


def _leaves(error: BaseException) -> list[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        return [leaf for part in error.exceptions for leaf in _leaves(part)]
    return [error, *(_leaves(error.__cause__) if error.__cause__ is not None else ())]


def _refusal(error: BaseException) -> Refused | None:
    return next((leaf for leaf in _leaves(error) if isinstance(leaf, Refused)), None)


def _explain(error: BaseException) -> str:
    """What a caller may read: the protocol's own message, or what kind of failure it was; never our internals."""
    refusal = _refusal(error)
    if refusal is not None:
        return str(refusal)
    leaf = _leaves(error)[0]
    if isinstance(leaf, httpx2.HTTPStatusError):
        return f"HTTP status {leaf.response.status_code}"
    if isinstance(leaf, httpx2.TransportError | OSError):
        return "no connection to the server"
    message = str(leaf)[:_ERROR_CHARACTERS]
    return message if type(leaf).__module__.startswith("mcp") and message else f"failed with {type(leaf).__name__}"
