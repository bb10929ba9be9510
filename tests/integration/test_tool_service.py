"""The tool service on real boxes: state, isolation, limits, expiry, and whose fault a failure is."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import aiohttp
import pytest

from core.config.schema import HoneConfig
from core.errors import InvalidRequest, NotFound, RateLimited, SandboxError
from sandbox.service.sessions import Session
from sandbox.service.wire import RunCall, RunDone
from tests.tool_service_harness import KEY, RunningService, running_service


@pytest.fixture
async def service(make_config: Callable[..., HoneConfig]) -> AsyncIterator[RunningService]:
    """A tool service with room for three boxes, two of one tenant."""
    overrides = {"worker.tools_sessions": 3, "worker.tools_sessions_per_tenant": 2}
    async with running_service(make_config, overrides) as running:
        yield running


class Client:
    """Speaks HTTP to the service as one tenant."""

    def __init__(self, service: RunningService, tenant: str, *, key: str = KEY) -> None:
        self.service = service
        self.headers = {"authorization": f"Bearer {key}", "x-hone-tenant": tenant}
        self.tenant = tenant

    async def ask(self, method: str, path: str, **more: Any) -> tuple[int, Any]:
        """Status and body."""
        async with (
            aiohttp.ClientSession(headers=self.headers) as http,
            http.request(method, f"{self.service.url}{path}", **more) as answer,
        ):
            data = await answer.read()
            return answer.status, await answer.json() if answer.content_type == "application/json" else data

    async def create(self) -> str:
        """A new session's id."""
        status, body = await self.ask("POST", "/sessions", json={"tenant": self.tenant})
        assert (status, body["url"]) == (200, self.service.url)
        return body["session_id"]

    async def python(self, session: str, code: str, **more: Any) -> dict[str, Any]:
        """What a cell came to."""
        call = {"tool": "code_interpreter", "code": code} | more
        status, body = await self.ask("POST", f"/sessions/{session}/run", json=call)
        assert status == 200, body
        return body

    async def shell(self, session: str, command: str, **more: Any) -> dict[str, Any]:
        """What a command came to."""
        call = {"tool": "shell", "command": command} | more
        status, body = await self.ask("POST", f"/sessions/{session}/run", json=call)
        assert status == 200, body
        return body


async def run(service: RunningService, session: Session, code: str) -> RunDone:
    """A cell without HTTP."""
    return await service.sessions.run(session, RunCall(tool="code_interpreter", code=code))


async def test_state_and_files_are_kept_between_calls(service: RunningService) -> None:
    """Variables, imports and files of one call are there in the next, for Python and shell alike."""
    client = Client(service, "a")
    session = await client.create()
    assert (await client.python(session, "import math\nx = 20"))["outcome"] == "ok"
    assert (await client.python(session, "x += math.floor(2.5)\nx"))["stdout"] == "22\n"
    made = await client.python(session, "open('data.txt', 'w').write('hello')")
    assert made["files"] == [{"path": "data.txt", "bytes": 5}]
    assert (await client.shell(session, "cat data.txt; echo more >> data.txt"))["stdout"] == "hello"
    assert (await client.python(session, "open('data.txt').read()"))["stdout"] == "'hellomore\\n'\n"


async def test_an_error_is_a_result_and_keeps_the_state(service: RunningService) -> None:
    """A traceback shows the cell's own line, with exit code 1, and variables survive it."""
    client = Client(service, "a")
    session = await client.create()
    failed = await client.python(session, "x = 1\nboom = x / 0")
    assert (failed["outcome"], failed["exit_code"], failed["variables_lost"]) == ("nonzero", 1, False)
    assert "boom = x / 0" in failed["stderr"] and "ZeroDivisionError" in failed["stderr"]
    assert "driver" not in failed["stderr"]
    assert (await client.python(session, "x"))["stdout"] == "1\n"
    assert (await client.python(session, "import sys; sys.exit(4)"))["exit_code"] == 4
    assert (await client.python(session, "def f(:"))["outcome"] == "nonzero"
    assert (await client.shell(session, "exit 7"))["exit_code"] == 7


async def test_an_endless_loop_is_interrupted_and_the_state_is_kept(service: RunningService) -> None:
    """A cell out of time is a timeout; one that can be interrupted leaves its variables, another loses them."""
    client = Client(service, "a")
    session = await client.create()
    await client.python(session, "x = 5")
    looped = await client.python(session, "while True: pass", timeout_seconds=0.5)
    assert (looped["outcome"], looped["variables_lost"]) == ("timeout", False)
    assert (await client.python(session, "x"))["stdout"] == "5\n"
    stubborn = "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nwhile True: pass"
    looped = await client.python(session, stubborn, timeout_seconds=0.5)
    assert (looped["outcome"], looped["variables_lost"]) == ("timeout", True)
    assert (await client.python(session, "'x' in globals()"))["stdout"] == "False\n"
    assert (await client.shell(session, "sleep 60", timeout_seconds=0.3))["outcome"] == "timeout"


async def test_output_is_bounded(service: RunningService) -> None:
    """Output is cut at the limit and said so; a flood is stopped."""
    client = Client(service, "a")
    session = await client.create()
    cut = await client.python(session, "print('x' * 5000)")
    assert (cut["outcome"], len(cut["stdout"]), cut["stdout_truncated"]) == ("ok", 4096, True)
    flood = await client.python(session, "while True: print('x' * 1000)")
    assert (flood["outcome"], len(flood["stdout"])) == ("output_limit", 4096)
    assert (await client.shell(session, "yes"))["outcome"] == "output_limit"
    assert (await client.shell(session, "echo fine"))["stdout"] == "fine\n"


async def test_memory_is_bounded(service: RunningService) -> None:
    """A cell that takes too much memory is stopped, told as such, and files survive it."""
    client = Client(service, "a")
    session = await client.create()
    await client.python(session, "open('kept', 'w').write('1')")
    hog = await client.python(session, "x = bytearray(200 << 20)\nx[:] = b'1' * len(x)")
    assert hog["outcome"] in ("oom", "nonzero")
    hog = await client.python(
        session, "import os\nfor _ in range(3): os.fork()\nx = b'x' * (40 << 20)\nwhile 1: pass"
    )
    assert (hog["outcome"], hog["variables_lost"]) == ("oom", True)
    assert (await client.shell(session, "cat kept"))["stdout"] == "1"


async def test_nothing_runs_between_calls(service: RunningService) -> None:
    """Background processes end with their call, and threads of the interpreter stand still until the next."""
    client = Client(service, "a")
    session = await client.create()
    await client.shell(session, "(setsid sleep 100 &) ; sleep 100 &")
    left = await client.shell(session, "cat /proc/[0-9]*/cmdline | tr '\\0' ' '")
    assert "sleep" not in left["stdout"].replace("cat", "")
    counting = "import threading, time\nn = 0\ndef f():\n    global n\n    while True: n += 1; time.sleep(0.001)\n"
    await client.python(session, counting + "threading.Thread(target=f, daemon=True).start()\nlast = n")
    before = int((await client.python(session, "n"))["stdout"])
    await asyncio.sleep(1.0)
    assert int((await client.python(session, "n"))["stdout"]) < before + 500


async def test_sessions_are_isolated(service: RunningService) -> None:
    """Neither variables, files nor processes of one session are seen in another."""
    client = Client(service, "a")
    first, second = await client.create(), await client.create()
    await client.python(first, "secret = 1\nopen('secret', 'w').write('x')")
    assert (await client.python(second, "'secret' in globals()"))["stdout"] == "False\n"
    assert (await client.shell(second, "ls"))["stdout"] == ""
    code = (
        "import os\nprint(sorted(int(p) for p in os.listdir('/proc') if p.isdigit())[:2], os.environ.get('HONE_X'))"
    )
    assert (await client.python(second, code))["stdout"].startswith("[1, 2] None")
    network = "import socket\ntry: socket.create_connection(('1.1.1.1', 53), 1)\nexcept OSError: print('none')"
    assert (await client.python(second, network))["stdout"] == "none\n"


async def test_another_tenant_cannot_reach_a_session(service: RunningService) -> None:
    """For another tenant a session does not exist, whatever is asked of it."""
    owner, other = Client(service, "a"), Client(service, "b")
    session = await owner.create()
    await owner.python(session, "x = 1")
    calls = [
        ("POST", f"/sessions/{session}/run", {"json": {"tool": "shell", "command": "ls"}}),
        ("GET", f"/sessions/{session}", {}),
        ("GET", f"/sessions/{session}/files/x", {}),
        ("PUT", f"/sessions/{session}/files/x", {"data": b"1"}),
        ("DELETE", f"/sessions/{session}", {}),
    ]
    for method, path, more in calls:
        status, body = await other.ask(method, path, **more)
        assert (status, body["error"]["code"]) == (404, "not_found")
    assert (await owner.python(session, "x"))["stdout"] == "1\n"


async def test_only_the_key_opens_the_service(service: RunningService) -> None:
    """No route answers without the right key, nor a body of unknown or absurd length."""
    for key in ("", "wrong", KEY + "x"):
        status, body = await Client(service, "a", key=key).ask("POST", "/sessions", json={"tenant": "a"})
        assert (status, body["error"]["code"]) == (401, "invalid_api_key")
    status, _ = await Client(service, "a").ask("POST", "/sessions", data=b" " * (5 << 20))
    assert status == 400


async def test_boxes_are_limited_per_tenant_and_in_total(service: RunningService) -> None:
    """The box too many is a 429 that says what to do; deleting a session makes room."""
    first = Client(service, "a")
    sessions = [await first.create() for _ in range(3)]
    for session in sessions[:2]:
        await first.python(session, "1")
    call = {"json": {"tool": "shell", "command": "ls"}}
    status, body = await first.ask("POST", f"/sessions/{sessions[2]}/run", **call)
    assert (status, body["error"]["code"]) == (429, "rate_limit_exceeded")
    assert "tools_sessions_per_tenant" in body["error"]["message"]
    second, third = Client(service, "b"), Client(service, "c")
    await second.python(await second.create(), "1")
    refused = await third.create()
    status, body = await third.ask("POST", f"/sessions/{refused}/run", **call)
    assert status == 429 and "worker.tools_sessions" in body["error"]["message"]
    assert (await third.ask("GET", "/load"))[1] == {"sessions": 5, "boxes": 3, "free": 0, "url": service.url}
    assert (await first.ask("DELETE", f"/sessions/{sessions[0]}"))[0] == 204
    assert (await third.shell(refused, "echo in"))["stdout"] == "in\n"


async def test_idle_sessions_expire(service: RunningService) -> None:
    """A session that is used stays; one without a call for the configured time is gone, with its box."""
    client = Client(service, "a")
    used, idle = await client.create(), await client.create()
    await client.python(idle, "x = 1")
    service.clock.now += 400
    await client.python(used, "x = 1")
    service.clock.now += 400
    assert await service.sessions.expire() == 1
    assert service.sessions.load.boxes == 1
    status, body = await client.ask("POST", f"/sessions/{idle}/run", json={"tool": "shell", "command": "ls"})
    assert status == 404 and "expired" in body["error"]["message"]
    assert (await client.python(used, "x"))["stdout"] == "1\n"


async def test_files_go_in_and_out(service: RunningService) -> None:
    """Files are written and read whole; what is no plain small file below the work folder is refused."""
    client = Client(service, "a")
    session = await client.create()
    data = bytes(range(256)) * 16
    assert (await client.ask("PUT", f"/sessions/{session}/files/in/data.bin", data=data))[0] == 204
    seen = await client.python(session, "len(open('in/data.bin', 'rb').read())")
    assert seen["stdout"] == "4096\n"
    assert (await client.ask("GET", f"/sessions/{session}/files/in/data.bin")) == (200, data)
    assert (await client.ask("GET", f"/sessions/{session}/files/none"))[0] == 404
    await client.shell(session, "mkfifo pipe; head -c 2000000 /dev/zero > big; ln -s /etc/passwd link")
    for path in ("pipe", "big", "in"):
        assert (await client.ask("GET", f"/sessions/{session}/files/{path}"))[0] == 400, path
    for path in ("../x", "/etc/passwd", "a//b", ""):
        with pytest.raises(InvalidRequest):
            await service.sessions.read_file(service.sessions.get("a", session), path)


async def test_code_that_kills_its_driver_only_loses_variables(service: RunningService) -> None:
    """Ending everything in the box is the code's doing: a result, and the next call starts afresh with the files."""
    client = Client(service, "a")
    session = await client.create()
    await client.python(session, "x = 1; open('kept', 'w').write('1')")
    killed = await client.python(session, "import os, signal\nos.kill(os.getppid(), signal.SIGKILL)")
    assert (killed["outcome"], killed["variables_lost"]) == ("killed", True)
    own = await client.python(session, "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)")
    assert (own["outcome"], own["variables_lost"]) == ("killed", True)
    assert (await client.python(session, "('x' in globals(), open('kept').read())"))["stdout"] == "(False, '1')\n"


async def test_a_forged_answer_only_reaches_its_own_session(service: RunningService) -> None:
    """Code that writes nonsense where the interpreter answers loses its variables, nothing else."""
    client = Client(service, "a")
    session = await client.create()
    forged = await client.python(session, "import os\nos.write(3, b'nonsense\\n')")
    assert forged["variables_lost"]
    assert (await client.python(session, "1 + 1"))["stdout"] == "2\n"


async def test_a_lost_box_is_the_sandboxs_fault(service: RunningService) -> None:
    """A box that the host kills is a server error, never a result; the next call is told that files are gone."""
    session = service.sessions.create("a")
    await run(service, session, "x = 1")
    assert session.box is not None
    await session.box.close()
    with pytest.raises(SandboxError):
        for _ in range(2):
            result = await run(service, session, "x")
            assert result.outcome == "killed"
    fresh = await run(service, session, "'x' in globals()")
    assert (fresh.stdout, fresh.files_lost, fresh.variables_lost) == ("False\n", True, True)
    assert not (await run(service, session, "1")).files_lost


async def test_a_caller_who_leaves_stops_the_call(service: RunningService) -> None:
    """When the connection is closed the running call ends, and the session can be used again at once."""
    client = Client(service, "a")
    session = await client.create()
    await client.python(session, "open('kept', 'w').write('1')")
    slow = asyncio.create_task(client.shell(session, "sleep 15; echo done > finished"))
    await asyncio.sleep(0.5)
    slow.cancel()
    await asyncio.gather(slow, return_exceptions=True)
    after = await client.shell(session, "ls")
    assert after["stdout"] == "kept\n"


async def test_nothing_is_left_after_the_service_stops(make_config: Callable[..., HoneConfig]) -> None:
    """Stopping ends boxes in the middle of a call."""
    async with running_service(make_config) as service:
        session = service.sessions.create("a")
        slow = asyncio.create_task(run(service, session, "import time; time.sleep(15)"))
        await asyncio.sleep(0.5)
    (ended,) = await asyncio.gather(slow, return_exceptions=True)
    assert isinstance(ended, SandboxError) or (isinstance(ended, RunDone) and ended.outcome == "killed")
    assert service.sessions.load.boxes == 0


async def test_records_are_limited_per_tenant(service: RunningService) -> None:
    """A tenant that has too many sessions is refused a further one; nobody else is."""
    for _ in range(1_000):
        service.sessions.create("a")
    with pytest.raises(RateLimited, match="this tenant"):
        service.sessions.create("a")
    assert service.sessions.create("b").tenant == "b"


async def test_a_session_can_have_an_id_that_was_told_before(service: RunningService) -> None:
    """Creating it again changes nothing; it stays its tenant's; an id of another form is refused."""
    body = {"tenant": "a", "session_id": "s" * 24}
    for _ in range(2):
        status, made = await Client(service, "a").ask("POST", "/sessions", json=body)
        assert (status, made["session_id"]) == (200, "s" * 24)
    assert service.sessions.load.sessions == 1
    with pytest.raises(NotFound):
        service.sessions.create("b", "s" * 24)
    status, _ = await Client(service, "a").ask("POST", "/sessions", json=body | {"session_id": "../x"})
    assert status == 422
