"""What every implementation of hosted tools must do: the one over sandboxes and MCP servers, and the tests' own."""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

import pytest
from mcp.server.mcpserver import MCPServer

from core.config.schema import HoneConfig
from core.errors import NotFound
from gateway.hosted_tools.base import HostedTools
from gateway.hosted_tools.tools import SandboxedTools
from tests.responses_fakes import FakeHostedTools
from tests.tool_service_harness import caller, running_app, running_service

CALLER = caller("ten_a")
CODE = {"type": "code_interpreter", "container": {"type": "auto"}}
SHELL = {"type": "shell", "environment": {"type": "container_auto"}}


@dataclass
class Case:
    """One implementation, a container that is gone, and a server that has the tool ``search``."""

    tools: HostedTools
    gone: str
    mcp: dict[str, Any]


@pytest.fixture(params=["sandbox", "fake"])
async def case(request: pytest.FixtureRequest, make_config: Callable[..., HoneConfig]) -> AsyncIterator[Case]:
    """Each implementation in turn."""
    declaration: dict[str, Any] = {"type": "mcp", "server_label": "docs", "server_url": "http://127.0.0.1/mcp"}
    if request.param == "fake":
        yield Case(FakeHostedTools(gone={"cntr_gone"}), "cntr_gone", declaration)
        return
    server = MCPServer("docs")

    @server.tool()
    def search() -> str:
        """Searches."""
        return "found"

    async with (
        running_app(server.streamable_http_app()) as port,
        running_service(make_config, {"gateway.mcp_allowed_hosts": ("127.0.0.1",)}) as service,
    ):
        tools = SandboxedTools(config=service.config)
        await tools.start()
        yield Case(tools, "cntr_gone", declaration | {"server_url": f"http://127.0.0.1:{port}/mcp"})
        await tools.stop()


async def test_declared_tools_are_defined_and_run(case: Case) -> None:
    """Each declaration brings its definitions; a call of each gives a text and no error."""
    arguments = {"code_interpreter": {"code": "1"}, "shell": {"commands": ["ls"]}}
    async with await case.tools.open_session(CALLER, None, [CODE, SHELL, case.mcp]) as session:
        kinds = [tool.kind for tool in session.definitions()]
        assert kinds == ["code_interpreter", "shell", "mcp"]
        assert session.container_id
        (listing,) = session.listings
        assert (listing.server_label, listing.error) == ("docs", None)
        assert [tool.tool_name for tool in listing.tools] == ["search"]
        for tool in session.definitions():
            outcome = await session.run(tool.name, arguments.get(tool.kind, {}))
            assert outcome.text and outcome.error is None


async def test_a_container_is_used_again(case: Case) -> None:
    """A session that names an earlier one's container has that container."""
    async with await case.tools.open_session(CALLER, None, [CODE]) as session:
        container = session.container_id
        assert session.listings in ((), [])
        assert (await session.run("code_interpreter", {"code": "1"})).error is None
        assert session.container_id == container
    async with await case.tools.open_session(CALLER, container, [CODE]) as session:
        assert session.container_id == container


async def test_a_container_that_is_gone_is_not_found(case: Case) -> None:
    """An unknown container is an error before anything runs."""
    with pytest.raises(NotFound):
        await case.tools.open_session(CALLER, case.gone, [CODE])


async def test_leaving_never_raises(case: Case) -> None:
    """A session is left cleanly from another task than it was opened in, and after an error."""
    session = await asyncio.create_task(case.tools.open_session(CALLER, None, [CODE, case.mcp]))
    with pytest.raises(ValueError, match="mine"):
        async with session:
            raise ValueError("mine")
