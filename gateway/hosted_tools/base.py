"""The port of hosted tools: tools that the gateway runs itself between two calls of a model.

A *declaration* is an entry of a request's ``tools`` as the client sent it: ``{"type": "code_interpreter", …}``,
``{"type": "shell", "environment": {"type": "container_auto"}}`` or ``{"type": "mcp", "server_label": …}``.
Source: OpenAI Responses API, ``tools``.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Literal, Protocol, Self

from gateway.auth import Caller

ToolKind = Literal["code_interpreter", "shell", "mcp"]


@dataclass(frozen=True, slots=True)
class ToolDefinition:
    """One tool as the model is offered it: a function with a JSON schema.

    Arguments are fixed for two kinds. ``code_interpreter``: ``{"code": str}``. ``shell``: ``{"commands": [str, …],
    "timeout_ms"?: int, "max_output_length"?: int}``. An ``mcp`` tool has its server's schema.
    """

    kind: ToolKind
    name: str
    """What the model calls: 1 to 64 of ``A-Za-z0-9_-``, unique in its session."""
    description: str
    parameters: Mapping[str, Any]
    """JSON schema of an object."""
    server_label: str | None = None
    """The MCP server, as the declaration labels it."""
    tool_name: str | None = None
    """The tool's own name on its MCP server."""
    annotations: Mapping[str, Any] | None = None
    """What the MCP server says about the tool, such as ``readOnlyHint``."""


@dataclass(frozen=True, slots=True)
class ServerListing:
    """What one ``mcp`` declaration brought: the tools that are allowed, or why there are none."""

    server_label: str
    tools: tuple[ToolDefinition, ...] = ()
    error: str | None = None


@dataclass(frozen=True, slots=True)
class ProducedFile:
    """A file that a tool made, small enough to be handed over whole."""

    name: str
    media_type: str
    data: bytes


@dataclass(frozen=True, slots=True)
class CommandOutcome:
    """What one command of a ``shell`` call printed, and how it ended."""

    stdout: str
    stderr: str
    exit_code: int | None
    """None: it ran out of time."""


@dataclass(frozen=True, slots=True)
class ToolOutcome:
    """What a call of a tool came to. A failing command or server is an outcome, not an exception."""

    text: str
    """What the model is told: bounded, never empty for a failure."""
    error: str | None = None
    """Why the tool itself failed (an MCP error, a sandbox that is away); None where code ran, even to exit code 1."""
    commands: tuple[CommandOutcome, ...] = ()
    """``shell`` only: one per command."""
    files: tuple[ProducedFile, ...] = ()
    """``code_interpreter`` only: images first of all."""
    seconds: float = 0.0


class ToolSession(Protocol):
    """The hosted tools of one response. Entered and left as a context manager; leaving never raises."""

    @property
    def container_id(self) -> str:
        """The sandbox of ``code_interpreter`` and ``shell``; empty where no such tool is declared."""

    @property
    def listings(self) -> Sequence[ServerListing]:
        """One per ``mcp`` declaration, in their order."""

    def definitions(self) -> Sequence[ToolDefinition]:
        """Every tool that the model may be offered, those of the listings included."""

    async def run(self, name: str, arguments: Mapping[str, Any]) -> ToolOutcome:
        """Run a tool by the name of its definition, within the session's own limit of time.

        Raises nothing for what code or a server did: that is an outcome with ``error``. Cancelling stops the tool.
        """

    async def __aenter__(self) -> Self:
        """Itself."""

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close connections. A container outlives its session for a while, so that the next response can go on."""


class HostedTools(Protocol):
    """Opens sessions."""

    async def start(self) -> None:
        """Open what sessions share."""

    async def stop(self) -> None:
        """Close it."""

    async def open_session(
        self, caller: Caller, container: str | None, declarations: Sequence[Mapping[str, Any]]
    ) -> ToolSession:
        """The tools that the declarations ask for, ready to run; MCP servers have been asked for their tools.

        ``container`` is an earlier session's ``container_id`` of the same tenant, whose files and variables are still
        there; None: a fresh one. Nothing need run in a sandbox before the first call that needs it. Raises
        NotFound for a container that is gone or another tenant's, InvalidRequest (with ``param``) for a declaration
        that cannot be honoured, PermissionDenied for a server that is not allowed. An MCP server that does not
        answer is a listing with ``error``.
        """
