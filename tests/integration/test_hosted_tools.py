"""Hosted tools as the Responses API opens them: over real boxes, and before real MCP servers."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import structlog
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from starlette.responses import RedirectResponse, Response

from core.config.schema import HoneConfig
from core.errors import InvalidRequest, NotFound, PermissionDenied, SandboxError
from gateway.hosted_tools import sandbox_client
from gateway.hosted_tools.base import ToolOutcome
from gateway.hosted_tools.tools import SandboxedTools
from tests.tool_service_harness import KEY, RunningService, caller, free_port, running_app, running_service

ALICE, BOB = caller("ten_alice"), caller("ten_bob")
CODE = {"type": "code_interpreter", "container": {"type": "auto"}}
SHELL = {"type": "shell", "environment": {"type": "container_auto"}}
Make = Callable[..., HoneConfig]


@asynccontextmanager
async def started(config: HoneConfig, **more: Any) -> AsyncIterator[SandboxedTools]:
    """Hosted tools, started."""
    tools = SandboxedTools(config=config, **more)
    await tools.start()
    try:
        yield tools
    finally:
        await tools.stop()


@pytest.fixture
async def service(make_config: Make) -> AsyncIterator[RunningService]:
    """A tool service with real boxes."""
    async with running_service(make_config) as running:
        yield running


@pytest.fixture
async def tools(service: RunningService) -> AsyncIterator[SandboxedTools]:
    """Hosted tools over the service."""
    async with started(service.config) as made:
        yield made


async def test_code_and_shell_share_a_container_that_outlives_the_session(tools: SandboxedTools) -> None:
    """Variables and files of one response are there in the next that names its container."""
    async with await tools.open_session(ALICE, None, [CODE, SHELL]) as session:
        assert [tool.name for tool in session.definitions()] == ["code_interpreter", "shell"]
        first = await session.run("code_interpreter", {"code": "x = 6\nopen('a.txt', 'w').write('hi')\nx * 7"})
        assert (first.text, first.error) == ("42\n[files written: a.txt]", None)
        assert [(file.name, file.media_type, file.data) for file in first.files] == [("a.txt", "text/plain", b"hi")]
        container = session.container_id
    assert container.startswith("cntr_")
    async with await tools.open_session(ALICE, container, [CODE, SHELL]) as session:
        assert session.container_id == container
        shell = await session.run("shell", {"commands": ["cat a.txt", "echo bad >&2; exit 3"]})
        outcomes = [(one.stdout, one.stderr, one.exit_code) for one in shell.commands]
        assert outcomes == [("hi", "", 0), ("", "bad\n", 3)]
        assert shell.error is None and "[exit code 3]" in shell.text
        assert (await session.run("code_interpreter", {"code": "x"})).text == "6"


async def test_images_come_first(tools: SandboxedTools) -> None:
    """Small files that code makes are handed over, images before others; only pixel images count as such."""
    code = "for name in ('z.png', 'a.csv', 'b.svg'): open(name, 'wb').write(b'x')\n"
    code += "open('big.png', 'wb').write(bytes(2 << 20))"
    async with await tools.open_session(ALICE, None, [CODE]) as session:
        outcome = await session.run("code_interpreter", {"code": code})
    assert [(file.name, file.media_type) for file in outcome.files] == [
        ("z.png", "image/png"),
        ("a.csv", "text/plain"),
        ("b.svg", "text/plain"),
    ]
    assert "big.png" in outcome.text


async def test_limits_of_a_shell_call(tools: SandboxedTools) -> None:
    """A command's own time and output limits hold, and the commands after it still run."""
    arguments = {"commands": ["sleep 30", "echo 0123456789"], "timeout_ms": 300, "max_output_length": 4}
    async with await tools.open_session(ALICE, None, [SHELL]) as session:
        outcome = await session.run("shell", arguments)
        assert [(one.stdout, one.exit_code) for one in outcome.commands] == [("", None), ("0123", 0)]
        for wrong in ({}, {"commands": []}, {"commands": [1]}):
            assert (await session.run("shell", wrong)).text.startswith("Malformed call")


async def test_a_container_belongs_to_its_tenant(tools: SandboxedTools) -> None:
    """Another tenant's container, a forged id and one that is gone are all the same: not found."""
    async with await tools.open_session(ALICE, None, [CODE]) as session:
        container = session.container_id
    forged = container[:-1] + ("0" if container[-1] != "0" else "1")
    for who, name in (
        (BOB, container),
        (ALICE, forged),
        (ALICE, "cntr_"),
        (ALICE, "x"),
        (ALICE, "cntr_é" + "0" * 32),
    ):
        with pytest.raises(NotFound):
            await tools.open_session(who, name, [CODE])


async def test_an_expired_container_is_told(tools: SandboxedTools, service: RunningService) -> None:
    """In the middle of a response an expired container is an outcome with an error; at its start it is not found."""
    async with await tools.open_session(ALICE, None, [CODE]) as session:
        await session.run("code_interpreter", {"code": "1"})
        service.clock.now += 700
        assert await service.sessions.expire() == 1
        gone = await session.run("code_interpreter", {"code": "1"})
        assert gone.error is not None and "expired" in gone.error
        with pytest.raises(NotFound):
            await tools.open_session(ALICE, session.container_id, [CODE])


async def test_full_services_are_told(make_config: Make) -> None:
    """Too many containers is an outcome with an error that says what to do, not a result of the code."""
    async with (
        running_service(make_config, {"worker.tools_sessions": 1}) as service,
        started(service.config) as tools,
        await tools.open_session(ALICE, None, [CODE]) as first,
        await tools.open_session(ALICE, None, [CODE]) as second,
    ):
        assert (await first.run("code_interpreter", {"code": "1"})).error is None
        refused = await second.run("code_interpreter", {"code": "1"})
    assert refused.error is not None and "containers" in refused.error
    assert refused.text.startswith("The tool is unavailable; nothing is wrong with the call itself.")


async def test_a_container_is_made_by_the_first_call(tools: SandboxedTools, service: RunningService) -> None:
    """A response that only declares a tool leaves nothing with the service; its id is good from the first call on."""
    async with await tools.open_session(ALICE, None, [CODE, SHELL]) as session:
        container = session.container_id
        assert service.sessions.load.sessions == 0
        await asyncio.gather(*(session.run("code_interpreter", {"code": "1"}) for _ in range(3)))
        assert (service.sessions.load.sessions, session.container_id) == (1, container)


async def test_too_many_sessions_of_a_tenant_are_told(tools: SandboxedTools, service: RunningService) -> None:
    """The session too many is an outcome with an error that says what to do; another tenant gets one."""
    for _ in range(1_000):
        service.sessions.create("ten_alice")
    for who, error in ((ALICE, "tool sessions"), (BOB, "")):
        async with await tools.open_session(who, None, [CODE]) as session:
            outcome = await session.run("code_interpreter", {"code": "1"})
            assert error in (outcome.error or "") and bool(outcome.error) == bool(error)


async def test_a_hung_service_holds_nobody_up(
    make_config: Make, service: RunningService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that does not answer counts as the busiest; alone, it is told like one that is away."""
    monkeypatch.setattr(sandbox_client, "_QUICK_SECONDS", 0.2)

    async def hang(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            await asyncio.sleep(20)

    async with running_app(hang) as port:
        for urls, error in ((f"http://127.0.0.1:{port},{service.url}", False), (f"http://127.0.0.1:{port}", True)):
            config = make_config({"gateway.tools_url": urls, "worker.tools_key": KEY})
            async with started(config) as tools, await tools.open_session(ALICE, None, [CODE]) as session:
                outcome = await session.run("code_interpreter", {"code": "1"})
                assert bool(outcome.error) == error


@pytest.mark.parametrize("number", [float("inf"), float("nan"), 10**400, -1, "1"])
async def test_numbers_of_all_sorts(tools: SandboxedTools, number: Any) -> None:
    """Whatever number a model writes, the command runs, within the sandbox's own limits."""
    arguments = {"commands": ["echo hi"], "timeout_ms": number, "max_output_length": number}
    async with await tools.open_session(ALICE, None, [SHELL]) as session:
        (command,) = (await session.run("shell", arguments)).commands
    assert (command.stdout.strip(), command.exit_code) == ("hi", 0)


async def test_what_nobody_foresaw_is_an_outcome(tools: SandboxedTools, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error of any kind within a tool ends its call with a failure, and not the answer."""

    async def broken(*_: object, **__: object) -> None:
        raise KeyError("secret")

    async with await tools.open_session(ALICE, None, [CODE]) as session:
        monkeypatch.setattr(sandbox_client.SandboxTools, "code_interpreter", broken)
        outcome = await session.run("code_interpreter", {"code": "1"})
    assert outcome.error == "the tool failed: KeyError" and "secret" not in outcome.text


async def test_a_service_that_is_away_is_told(make_config: Make) -> None:
    """Without a tool service the response goes on, and each call says that the tool is unavailable."""
    config = make_config({"worker.tools_port": free_port(), "worker.tools_key": KEY})
    async with started(config) as tools, await tools.open_session(ALICE, None, [CODE, SHELL]) as session:
        assert session.container_id == ""
        for name, arguments in (("code_interpreter", {"code": "1"}), ("shell", {"commands": ["ls"]})):
            outcome = await session.run(name, arguments)
            assert outcome.error is not None and outcome.text.startswith("The tool is unavailable")
        with pytest.raises(NotFound):
            await tools.open_session(ALICE, "cntr_x", [CODE])


async def test_a_failing_sandbox_is_no_result(tools: SandboxedTools, service: RunningService) -> None:
    """A box that the host kills is an outcome with an error; the next call is told that files are gone."""
    async with await tools.open_session(ALICE, None, [CODE]) as session:
        await session.run("code_interpreter", {"code": "x = 1"})

        async def fail(*_: object) -> None:
            raise SandboxError("the box died")

        kept, service.sessions._ask = service.sessions._ask, fail  # type: ignore[method-assign, assignment]
        failed = await session.run("code_interpreter", {"code": "x"})
        service.sessions._ask = kept  # type: ignore[method-assign]
    assert failed.error == "the box died"
    assert "nothing is wrong with the call itself" in failed.text


async def test_the_emptiest_of_several_services_is_chosen(make_config: Make) -> None:
    """New containers go where the fewest are; each later call goes to the worker that has the container."""
    async with running_service(make_config) as one, running_service(make_config) as two:
        urls = f"{one.url}, {two.url},http://127.0.0.1:{free_port()}"
        config = make_config({"gateway.tools_url": urls, "worker.tools_key": KEY})
        async with started(config) as tools:
            containers = []
            for _ in range(4):
                async with await tools.open_session(ALICE, None, [CODE]) as session:
                    containers.append(session.container_id)
                    await session.run("code_interpreter", {"code": f"n = {len(containers)}"})
            assert (one.sessions.load.boxes, two.sessions.load.boxes) == (2, 2)
            for number, container in enumerate(containers, 1):
                async with await tools.open_session(ALICE, container, [CODE]) as session:
                    assert (await session.run("code_interpreter", {"code": "n"})).text == str(number)


@pytest.mark.parametrize(
    ("declaration", "param"),
    [
        ({"type": "web_search"}, "tools[0].type"),
        (
            {"type": "code_interpreter", "container": {"type": "auto", "file_ids": ["f"]}},
            "tools[0].container.file_ids",
        ),
        ({"type": "code_interpreter", "container": {"memory_limit": "64g"}}, "tools[0].container.memory_limit"),
        (
            {"type": "shell", "environment": {"network_policy": {"type": "allowlist"}}},
            "tools[0].environment.network_policy",
        ),
    ],
)
async def test_what_cannot_be_honoured_is_refused(make_config: Make, declaration: Any, param: str) -> None:
    """A declaration that asks for what is not there is an error that names it."""
    async with started(make_config({"worker.tools_key": KEY})) as tools:
        with pytest.raises(InvalidRequest) as caught:
            await tools.open_session(ALICE, None, [declaration])
    assert caught.value.param == param


def mcp_server(seen: list[dict[str, str]]) -> MCPServer:
    """A real MCP server with a few tools; notes the headers that come with a call."""
    server = MCPServer("test")

    @server.tool(annotations={"readOnlyHint": True})  # type: ignore[arg-type]
    def add(a: int, b: int, context: Context) -> str:
        """Adds two numbers."""
        seen.append(dict(context.headers or {}))
        return str(a + b)

    @server.tool()
    def fail() -> str:
        """Always fails."""
        raise ToolError("on purpose")

    @server.tool()
    async def slow() -> str:
        """Takes too long."""
        await asyncio.sleep(60)
        return "late"

    @server.tool()
    def long() -> str:
        """Says too much."""
        return "x" * 200_000

    @server.tool()
    def huge() -> str:
        """Says far too much."""
        return "x" * (6 << 20)

    return server


def declare(port: int, path: str = "/mcp", **more: Any) -> dict[str, Any]:
    """An ``mcp`` declaration of a server on this machine."""
    return {"type": "mcp", "server_label": "calc", "server_url": f"http://127.0.0.1:{port}{path}"} | more


def mcp_config(make_config: Make, port: int, **more: Any) -> HoneConfig:
    """A configuration that allows one port of this machine."""
    return make_config(
        {"gateway.mcp_allowed_hosts": (f"127.0.0.1:{port}",), "gateway.mcp_timeout_seconds": 3.0} | more
    )


@pytest.mark.parametrize("path", ["/mcp", "/sse"])
@pytest.mark.parametrize("json_response", [False, True])
async def test_tools_of_an_mcp_server(make_config: Make, path: str, json_response: bool) -> None:
    """Tools are listed with their schemas and run, over both transports, with the headers of the declaration."""
    seen: list[dict[str, str]] = []
    server = mcp_server(seen)
    app = server.sse_app() if path == "/sse" else server.streamable_http_app(json_response=json_response)
    async with running_app(app) as port, started(mcp_config(make_config, port)) as tools:
        declaration = declare(port, path, authorization="tok-secret", headers={"X-Team": "red"})
        async with await tools.open_session(ALICE, None, [declaration]) as session:
            (listing,) = session.listings
            assert (listing.server_label, listing.error) == ("calc", None)
            assert session.container_id == ""
            add = next(tool for tool in session.definitions() if tool.tool_name == "add")
            assert (add.kind, add.name, add.server_label) == ("mcp", "calc_add", "calc")
            assert add.parameters["properties"].keys() == {"a", "b"}
            assert add.annotations == {"readOnlyHint": True}
            assert (await session.run("calc_add", {"a": 2, "b": 3})).text == "5"
            failed = await session.run("calc_fail", {})
            assert failed.error is not None and "on purpose" in failed.text
            wrong = await session.run("calc_add", {"a": "no"})
            assert wrong.error is not None
            late = await session.run("calc_slow", {})
            assert late.error == "The MCP server did not answer within 3 s."
            assert (await session.run("calc_add", {"a": 1, "b": 1})).text == "2"
            long = await session.run("calc_long", {})
            assert len(long.text) < 51_000 and long.text.endswith("[output cut here: too long]")
            assert (await session.run("calc_none", {})).error == "unknown tool"
    assert seen[0]["authorization"] == "Bearer tok-secret" and seen[0]["x-team"] == "red"


async def test_a_server_that_goes_away_in_a_call(make_config: Make) -> None:
    """A server that dies under a call is an outcome with an error, and so is every later call."""
    async with (
        running_app(mcp_server([]).streamable_http_app()) as port,
        started(mcp_config(make_config, port)) as tools,
    ):
        session = await tools.open_session(ALICE, None, [declare(port)])
        running = asyncio.create_task(session.run("calc_slow", {}))
        await asyncio.sleep(0.5)
    outcome = await running
    assert outcome.error
    async with session:
        assert (await session.run("calc_add", {"a": 1, "b": 2})).error


async def test_an_answer_beyond_all_bounds_is_an_error(make_config: Make) -> None:
    """An answer of megabytes is not read to its end."""
    async with (
        running_app(mcp_server([]).streamable_http_app(json_response=True)) as port,
        started(mcp_config(make_config, port)) as tools,
        await tools.open_session(ALICE, None, [declare(port)]) as session,
    ):
        outcome = await session.run("calc_huge", {})
    assert outcome.error is not None and len(outcome.text) < 1_000


async def test_allowed_tools_are_the_only_ones(make_config: Make) -> None:
    """``allowed_tools`` keeps every other tool from the model, by name and by read-only."""
    async with (
        running_app(mcp_server([]).streamable_http_app()) as port,
        started(mcp_config(make_config, port)) as tools,
    ):
        for allowed in (["add"], {"tool_names": ["add", "none"]}, {"read_only": True}):
            declaration = declare(port, allowed_tools=allowed)
            async with await tools.open_session(ALICE, None, [declaration]) as session:
                assert [tool.tool_name for tool in session.definitions()] == ["add"]
                assert (await session.run("calc_fail", {})).error == "unknown tool"


async def test_a_server_that_does_not_answer_is_a_listing_with_an_error(make_config: Make) -> None:
    """Nobody there, an HTTP error, nonsense and silence: the response goes on without that server's tools."""

    async def answer(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        if scope["path"] == "/silent":
            await asyncio.sleep(30)
        response = Response("{nonsense", media_type="application/json")
        if scope["path"] == "/denied":
            response = Response("no", status_code=401)
        await response(scope, receive, send)

    async with running_app(answer) as port:
        more = {"gateway.mcp_allowed_hosts": ("127.0.0.1",), "gateway.mcp_timeout_seconds": 1.0}
        async with started(make_config(more)) as tools:
            for path, at in (("/denied", port), ("/nonsense", port), ("/silent", port), ("/mcp", free_port())):
                async with await tools.open_session(ALICE, None, [declare(at, path)]) as session:
                    (listing,) = session.listings
                    assert listing.error and listing.tools == (), path
                    assert session.definitions() == ()


async def test_redirects_do_not_lead_elsewhere(make_config: Make) -> None:
    """A server that points to another one is not followed there."""
    reached: list[str] = []

    async def inner(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            reached.append(scope["path"])
            await Response("secret")(scope, receive, send)

    async with running_app(inner) as hidden:

        async def outer(scope: Any, receive: Any, send: Any) -> None:
            if scope["type"] == "http":
                await RedirectResponse(f"http://127.0.0.1:{hidden}/secret", status_code=307)(scope, receive, send)

        async with (
            running_app(outer) as port,
            started(mcp_config(make_config, port)) as tools,
            await tools.open_session(ALICE, None, [declare(port)]) as session,
        ):
            assert session.listings[0].error
    assert reached == []


async def test_mcp_is_off_unless_allowed(make_config: Make) -> None:
    """Without allowed hosts MCP is a clear 400; a host that is not on the list is a 403."""
    async with started(make_config()) as tools:
        with pytest.raises(InvalidRequest, match="switched off") as caught:
            await tools.open_session(ALICE, None, [declare(80)])
        assert caught.value.status == 400 and "mcp_allowed_hosts" in (caught.value.hint or "")
    async with started(make_config({"gateway.mcp_allowed_hosts": ("example.com",)})) as tools:
        with pytest.raises(PermissionDenied):
            await tools.open_session(ALICE, None, [declare(80)])


@pytest.mark.parametrize("address", ["127.0.0.1", "10.0.0.5", "169.254.169.254", "::1", "::ffff:10.0.0.1", "fd00::1"])
async def test_public_names_with_private_addresses_are_refused(make_config: Make, address: str) -> None:
    """With any public host allowed, a name that resolves to a private address is never connected to."""

    async def resolver(host: str, port: int) -> list[str]:
        return ["93.184.216.34", address]

    config = make_config({"gateway.mcp_allowed_hosts": ("*",), "gateway.mcp_timeout_seconds": 5.0})
    declaration = {"type": "mcp", "server_label": "x", "server_url": "https://rebind.example/mcp"}
    async with (
        started(config, resolver=resolver) as tools,
        await tools.open_session(ALICE, None, [declaration]) as session,
    ):
        assert session.listings[0].error == "'rebind.example' has an address that is not public"


async def test_secrets_are_not_logged(make_config: Make) -> None:
    """Neither headers, tokens nor the URL's query of a server appear in any log line, also when it fails."""
    with structlog.testing.capture_logs() as logs:
        async with (
            running_app(mcp_server([]).streamable_http_app()) as port,
            started(mcp_config(make_config, port)) as tools,
        ):
            secret = {"authorization": "hush-1", "headers": {"x-key": "hush-2"}}
            for path in ("/mcp?token=hush-3", "/none?token=hush-3"):
                async with await tools.open_session(ALICE, None, [declare(port, path, **secret)]) as session:
                    await session.run("calc_fail", {})
                    outcome: ToolOutcome | None = None
                    if session.listings[0].tools:
                        outcome = await session.run("calc_slow", {})
                    assert outcome is None or outcome.error
    assert "hush" not in json.dumps(logs, default=str)
