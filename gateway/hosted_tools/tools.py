"""Hosted tools as the Responses API opens them: the sandbox's and those of MCP servers, in one session."""

import asyncio
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self

import structlog

from core.config.schema import HoneConfig
from core.errors import HoneError, InvalidRequest, RateLimited, SandboxError
from gateway.auth import Caller
from gateway.hosted_tools.base import ServerListing, ToolDefinition, ToolOutcome, ToolSession
from gateway.hosted_tools.guarded_http import Resolve, resolve
from gateway.hosted_tools.mcp_client import McpDeclaration, McpServer, read_declaration
from gateway.hosted_tools.sandbox_client import CODE_INTERPRETER, SHELL, SandboxTools, ToolServices

log = structlog.get_logger(__name__)

_MOST_SERVERS = 16
_MEMORY = ("1g",)
_SANDBOX_KINDS = ("code_interpreter", "shell")


class SandboxedTools:
    """``HostedTools`` over the tool services of workers and the MCP client library."""

    def __init__(self, *, config: HoneConfig, resolver: Resolve = resolve) -> None:
        """``config.worker.tools_key`` is the key for the services; ``resolver`` looks up hosts of MCP servers."""
        gateway = config.gateway
        urls = [url.strip() for url in gateway.tools_url.split(",") if url.strip()]
        if not urls and config.worker.tools_port:
            urls = [config.tools_url]
        self._allowed_hosts = gateway.mcp_allowed_hosts
        self._mcp_seconds = gateway.mcp_timeout_seconds
        self._resolver = resolver
        self._services = ToolServices(
            urls=urls,
            key=config.worker.tools_key.get_secret_value(),
            wall_seconds=config.sandbox.wall_seconds,
        )

    async def start(self) -> None:
        """Open the pool of connections to tool services."""
        await self._services.start()

    async def stop(self) -> None:
        """Close it."""
        await self._services.stop()

    async def open_session(
        self, caller: Caller, container: str | None, declarations: Sequence[Mapping[str, Any]]
    ) -> ToolSession:
        """See ``HostedTools``."""
        definitions: dict[str, ToolDefinition] = {}
        servers: list[McpDeclaration] = []
        for number, declaration in enumerate(declarations):
            param = f"tools[{number}]"
            kind = declaration.get("type")
            if kind == "mcp":
                servers.append(read_declaration(declaration, self._allowed_hosts, param))
            elif kind in _SANDBOX_KINDS:
                _check_environment(declaration, param)
                chosen = CODE_INTERPRETER if kind == "code_interpreter" else SHELL
                definitions[chosen.name] = chosen
            else:
                raise InvalidRequest(f"tools of type '{kind}' are not run here", param=f"{param}.type")
        _check_labels(servers)
        sandbox = await self._sandbox(caller.tenant.id, container) if definitions else None
        session = _Session(sandbox, definitions)
        await session.connect(
            [McpServer(server, timeout_seconds=self._mcp_seconds, resolver=self._resolver) for server in servers]
        )
        return session

    async def _sandbox(self, tenant: str, container: str | None) -> SandboxTools:
        if container is not None:
            await self._services.find(container, tenant)
            return SandboxTools(services=self._services, tenant=tenant, container_id=container, made=True)
        try:
            chosen = await self._services.choose(tenant)
        except (SandboxError, RateLimited) as error:
            # The response goes on: the model is told at its first call, when the service is asked once more.
            log.warning("no_container", error=error.message)
            chosen = ""
        return SandboxTools(services=self._services, tenant=tenant, container_id=chosen, made=False)


class _Session:
    """See ``ToolSession``."""

    def __init__(self, sandbox: SandboxTools | None, definitions: dict[str, ToolDefinition]) -> None:
        self._sandbox = sandbox
        self._definitions = definitions
        self._servers: dict[str, McpServer] = {}
        self.listings: Sequence[ServerListing] = ()

    @property
    def container_id(self) -> str:
        """The sandbox of this session; empty where there is none."""
        return self._sandbox.container_id if self._sandbox is not None else ""

    def definitions(self) -> Sequence[ToolDefinition]:
        """Every tool that may be offered."""
        return tuple(self._definitions.values())

    async def connect(self, servers: Sequence[McpServer]) -> None:
        """Ask the MCP servers for their tools, all at once."""
        taken = set(_SANDBOX_KINDS)
        try:
            self.listings = await asyncio.gather(*(server.open(taken) for server in servers))
        except BaseException:
            await asyncio.gather(*(server.close() for server in servers))
            raise
        for server, listing in zip(servers, self.listings, strict=True):
            self._servers[listing.server_label] = server
            self._definitions |= {tool.name: tool for tool in listing.tools}

    async def run(self, name: str, arguments: Mapping[str, Any]) -> ToolOutcome:
        """Run a tool; every failure is an outcome."""
        definition = self._definitions.get(name)
        if definition is None:
            return ToolOutcome(text=f"There is no tool '{name[:64]}'.", error="unknown tool")
        try:
            return await self._run(definition, arguments)
        except HoneError:
            raise
        except Exception as error:
            # One call must not end the answer, whatever a model, a service or a server sent.
            log.exception("hosted_tool_broke", kind=definition.kind, error=type(error).__name__)
            return ToolOutcome(text="The tool failed.", error=f"the tool failed: {type(error).__name__}")

    async def _run(self, definition: ToolDefinition, arguments: Mapping[str, Any]) -> ToolOutcome:
        if definition.kind == "mcp":
            return await self._servers[definition.server_label or ""].call(definition, arguments)
        assert self._sandbox is not None
        if definition.kind == "code_interpreter":
            return await self._sandbox.code_interpreter(arguments)
        return await self._sandbox.shell(arguments)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.gather(*(server.close() for server in self._servers.values()))


def _check_labels(servers: Sequence[McpDeclaration]) -> None:
    labels = [server.label for server in servers]
    if len(set(labels)) != len(labels):
        raise InvalidRequest("two MCP servers have the same 'server_label'", param="tools")
    if len(servers) > _MOST_SERVERS:
        raise InvalidRequest(f"a request may name {_MOST_SERVERS} MCP servers", param="tools")


def _check_environment(declaration: Mapping[str, Any], param: str) -> None:
    """Refuse what a container here cannot have, instead of leaving it out unseen."""
    key = "container" if declaration.get("type") == "code_interpreter" else "environment"
    wanted = declaration.get(key)
    if wanted is None or isinstance(wanted, str):
        return
    if not isinstance(wanted, dict):
        raise InvalidRequest(f"'{key}' must be an object or an id", param=f"{param}.{key}")
    for name in ("file_ids", "skills", "domain_secrets"):
        if wanted.get(name):
            raise InvalidRequest(f"containers here cannot be given '{name}'", param=f"{param}.{key}.{name}")
    memory = wanted.get("memory_limit")
    if memory is not None and memory not in _MEMORY:
        raise InvalidRequest(
            "containers here have the memory that the operator gives them",
            hint="leave 'memory_limit' out; the operator's key is sandbox.memory_mib",
            param=f"{param}.{key}.memory_limit",
        )
    policy = wanted.get("network_policy")
    if isinstance(policy, dict) and policy.get("type") != "disabled":
        raise InvalidRequest("containers here have no network", param=f"{param}.{key}.network_policy")
