"""What every Runtime must do, whatever its wall."""

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from core.config.sandbox import SandboxSection
from core.errors import SandboxError
from sandbox.runtimes.base import Box, BoxSpec, Outcome, Runtime
from sandbox.runtimes.conversation import ConversationEnded
from sandbox.runtimes.factory import make_runtime

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=["bubblewrap", "process"])
async def runtime(request: pytest.FixtureRequest) -> AsyncIterator[Runtime]:
    """A started runtime with a small pool."""
    section = SandboxSection(
        runtime=request.param, pool_size=1, max_boxes=4, wall_seconds=60, output_bytes=4096, max_processes=24
    )
    made = make_runtime(section)
    await made.start()
    yield made
    await made.stop()


@pytest_asyncio.fixture(loop_scope="module")
async def box(runtime: Runtime) -> AsyncIterator[Box]:
    """A fresh box."""
    async with runtime.box() as made:
        yield made


async def test_ok_and_output(box: Box) -> None:
    """A command that succeeds is OK, and its two streams stay apart."""
    result = await box.shell("echo out; echo err >&2")
    assert (result.outcome, result.exit_code, result.stdout, result.stderr) == (Outcome.OK, 0, "out\n", "err\n")
    assert result.ok and not result.infrastructure
    assert result.limits_enforced


async def test_nonzero(box: Box) -> None:
    """The exit code of a failing command is told."""
    result = await box.shell("exit 7")
    assert (result.outcome, result.exit_code) == (Outcome.NONZERO, 7)


async def test_unknown_program_is_the_callers_fault(box: Box) -> None:
    """A program that does not exist is exit code 127, never a failure of the sandbox."""
    result = await box.exec(["no-such-program"])
    assert (result.outcome, result.exit_code) == (Outcome.NONZERO, 127)
    assert "not found" in result.stderr
    assert (await box.exec([])).outcome is Outcome.NONZERO


async def test_own_signal_is_killed(box: Box) -> None:
    """Code that dies by a signal of its own is KILLED with that signal."""
    result = await box.python("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)")
    assert (result.outcome, result.signal) == (Outcome.KILLED, 11)


async def test_python_behaves_like_the_interpreter(box: Box) -> None:
    """Arguments, __main__, exit codes, exit handlers, threads and tracebacks are those of python3 -I -c."""
    script = (
        "import atexit, sys, threading, time\n"
        "atexit.register(print, 'bye')\n"
        "threading.Thread(target=lambda: (time.sleep(0.05), print('thread'))).start()\n"
        "print(__name__, sys.argv[1:], '' in sys.path)\n"
    )
    result = await box.python(script, arguments=["a", "b c"])
    assert result.ok
    assert result.stdout.splitlines() == ["__main__ ['a', 'b c'] False", "thread", "bye"]
    failed = await box.python("def f():\n    return 1 / 0\nf()")
    assert (failed.outcome, failed.exit_code) == (Outcome.NONZERO, 1)
    assert failed.stderr.splitlines()[0] == "Traceback (most recent call last):"
    assert 'File "<string>", line 3, in <module>' in failed.stderr
    assert "agent" not in failed.stderr
    assert (await box.python("import sys; sys.exit(3)")).exit_code == 3
    refused = await box.python("raise SystemExit('why')")
    assert (refused.exit_code, refused.stderr) == (1, "why\n")
    assert (await box.python("this is not python")).exit_code == 1
    assert (await box.python("\ud800")).outcome is Outcome.NONZERO


async def test_python_calls_share_no_variables(box: Box) -> None:
    """Every call starts with fresh modules and variables."""
    await box.python("import json; json.leak = 1; leak = 2")
    result = await box.python("import json; print(hasattr(json, 'leak'), 'leak' in globals())")
    assert result.stdout == "False False\n"


async def test_stdin_and_environment(box: Box) -> None:
    """stdin is what was given, empty otherwise; the environment holds only what it must."""
    given = await box.python("print(input(), len(__import__('sys').stdin.read()))", stdin="line\nrest")
    assert given.stdout == "line 4\n"
    assert (await box.shell("wc -c")).stdout.strip() == "0"
    named = await box.shell("env", env={"EXTRA": "1"})
    names = {line.partition("=")[0] for line in named.stdout.splitlines()}
    assert "EXTRA" in names
    assert names <= {"EXTRA", "HOME", "LANG", "PATH", "PWD", "PYTHONDONTWRITEBYTECODE", "TMPDIR"}


async def test_timeout_kills_and_the_box_goes_on(box: Box) -> None:
    """An endless loop is a TIMEOUT; the box and its files stay usable."""
    await box.write("kept.txt", "here")
    result = await box.python("print('begun', flush=True)\nwhile True: pass", wall_seconds=0.3)
    assert (result.outcome, result.stdout) == (Outcome.TIMEOUT, "begun\n")
    assert (await box.shell("cat kept.txt")).stdout == "here"


async def test_cpu_time_is_limited(runtime: Runtime) -> None:
    """A loop that uses up its CPU time is a TIMEOUT before its wall time."""
    async with runtime.box(BoxSpec(cpu_seconds=1, wall_seconds=200)) as box:
        result = await box.exec(["python3", "-c", "while True: pass"])
        assert result.outcome is Outcome.TIMEOUT
        assert result.signal is not None


async def test_memory_sum_is_limited(runtime: Runtime) -> None:
    """Several processes that together hold too much are OOM, and the box goes on."""
    code = (
        "import os, time\n"
        "for _ in range(3):\n"
        "    if os.fork() == 0:\n"
        "        held = b'x' * (30 << 20); time.sleep(5); os._exit(0)\n"
        "held = b'x' * (30 << 20)\n"
        "codes = [os.wait()[1] for _ in range(3)]\n"
        "raise SystemExit(1 if any(codes) else 0)\n"
    )
    async with runtime.box(BoxSpec(memory_mib=64)) as box:
        assert (await box.python(code)).outcome is Outcome.OOM
        assert (await box.shell("echo alive")).stdout == "alive\n"


async def test_output_is_cut_and_said_so(box: Box) -> None:
    """Output above the cap is cut; a flood is stopped."""
    cut = await box.python("print('x' * 10_000)")
    assert cut.ok and cut.stdout_truncated and len(cut.stdout) == 4096
    flood = await box.shell("cat /dev/zero >&2")
    assert flood.outcome is Outcome.OUTPUT_LIMIT
    assert flood.stderr_truncated and len(flood.stderr) == 4096


async def test_background_processes_end_with_the_command(box: Box) -> None:
    """What a command leaves running is killed when it ends, so a box stays usable and quick."""
    code = (
        "import os, time\n"
        "if os.fork() == 0:\n"
        "    os.setsid()\n"
        "    if os.fork() == 0:\n"
        "        open('pid', 'w').write(str(os.getpid())); time.sleep(60)\n"
        "    os._exit(0)\n"
        "while not os.path.exists('pid') or not open('pid').read(): time.sleep(0.01)\n"
    )
    result = await box.python(code)
    assert result.ok
    pid = (await box.read("pid", 100)).decode()
    assert (await box.shell(f"kill -0 {pid}")).outcome is Outcome.NONZERO


async def test_fork_bomb_is_stopped(box: Box) -> None:
    """No more than max_processes exist at once."""
    code = (
        "import os, time\n"
        "made = 0\n"
        "try:\n"
        "    while made < 300:\n"
        "        if os.fork() == 0: time.sleep(30)\n"
        "        made += 1\n"
        "except BlockingIOError: pass\n"
        "print(made)\n"
    )
    result = await box.python(code)
    assert result.ok
    assert int(result.stdout) <= 24


async def test_files_in_and_out(runtime: Runtime) -> None:
    """Files go in by spec and by write, and come out by read and list."""
    spec = BoxSpec(files={"a.py": "print('a')", "deep/er/b.txt": "b"})
    async with runtime.box(spec) as box:
        await box.write("deep/c.bin", b"\x00\xff")
        await box.write("a.py", "print('new')")
        assert await box.list() == ["a.py", "deep/c.bin", "deep/er/b.txt"]
        assert await box.list("deep") == ["deep/c.bin", "deep/er/b.txt"]
        assert await box.read("deep/c.bin", 10) == b"\x00\xff"
        assert (await box.exec(["python3", "a.py"])).stdout == "new\n"
        large = b"z" * (3 << 20)
        await box.write("large", large)
        assert await box.read("large", 4 << 20) == large


async def test_readonly_files(runtime: Runtime) -> None:
    """Read-only files can be read and neither changed nor replaced, and are not in the work folder."""
    async with runtime.box(BoxSpec(readonly_files={"t/test.py": "print('hidden')"})) as box:
        path = f"{box.readonly_folder}/t/test.py"
        assert (await box.exec(["python3", path])).stdout == "hidden\n"
        for command in (f"echo x > {path}", f"rm -f {path}", f"touch {box.readonly_folder}/x"):
            assert (await box.shell(command)).outcome is Outcome.NONZERO
        assert (await box.shell(f"cat {path}")).stdout == "print('hidden')"
        assert await box.list() == []


async def test_file_errors_are_os_errors(box: Box) -> None:
    """What the content of a box is to blame for is an OSError, never a SandboxError."""
    await box.shell("mkdir folder; mkfifo pipe; ln -s /etc/passwd link; ln -s folder linked; echo 12345 > f")
    await box.shell("truncate -s 900G sparse || truncate -s 20M sparse")
    with pytest.raises(FileNotFoundError):
        await box.read("missing", 10)
    for path in ("link", "pipe", "linked/x", "../../etc/passwd", "/etc/passwd", "sparse", "folder", "", "\ud800"):
        with pytest.raises(OSError):
            await box.read(path, 1 << 20)
    for path in ("link", "pipe", "linked/x", "../x", "folder"):
        with pytest.raises(OSError):
            await box.write(path, "x")
    with pytest.raises(OSError):
        await box.read("f", 2)
    assert (await box.shell("echo alive")).ok


async def test_hostile_folders_do_not_break_the_agent(box: Box) -> None:
    """Endless folders, many files and odd names leave list and the box working."""
    code = (
        "import os\n"
        "for i in range(3000): open(f'f{i}', 'w').close()\n"
        "open(b'bad\\xff', 'w').close()\n"
        "for i in range(600): os.mkdir('d'); os.chdir('d')\n"
    )
    await box.python(code)
    assert len(await box.list()) <= 1000
    assert (await box.shell("echo alive")).ok


async def test_code_failing_is_not_the_sandbox_failing(box: Box) -> None:
    """Killing everything in reach is the code's own doing."""
    result = await box.python("import os, signal; os.kill(-1, signal.SIGKILL)", wall_seconds=5)
    assert not result.infrastructure


async def test_commands_run_one_at_a_time(box: Box) -> None:
    """Concurrent calls on one box wait for one another."""
    calls = [box.shell("test ! -e busy && touch busy && sleep 0.05 && rm busy") for _ in range(3)]
    assert all(result.ok for result in await asyncio.gather(*calls))


async def test_cancelling_a_command_ends_the_box(runtime: Runtime) -> None:
    """A cancelled command leaves nothing running; the box says that it is gone."""
    async with runtime.box() as box:
        task = asyncio.create_task(box.exec(["sleep", "30"]))
        await asyncio.sleep(0.1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        later = await box.shell("echo no")
        assert later.outcome is Outcome.KILLED
        assert "cancelled" in later.stderr


async def test_time_to_live(runtime: Runtime) -> None:
    """A box past its TTL is killed with the reason, also in the middle of a command."""
    async with runtime.box(BoxSpec(ttl_seconds=0.3)) as box:
        result = await box.exec(["sleep", "30"])
        assert result.outcome is Outcome.KILLED
        assert "lived longer" in result.stderr
        with pytest.raises(SandboxError):
            await box.read("x", 1)


async def test_closed_box(runtime: Runtime) -> None:
    """Closing twice is fine; a closed box runs nothing."""
    async with runtime.box() as box:
        await box.close()
        await box.close()
        assert (await box.shell("true")).outcome is Outcome.KILLED


async def test_boxes_do_not_see_one_another(runtime: Runtime) -> None:
    """A file of one box is not in another, nor reachable from it, and their user ids differ as root."""
    async with runtime.box() as first, runtime.box() as second:
        await first.write("mine", "secret")
        assert await second.list() == []
        if first.work_folder != second.work_folder:
            result = await second.shell(f"cat {first.work_folder}/mine")
            assert result.outcome is Outcome.NONZERO


async def test_boxes_are_capped(runtime: Runtime) -> None:
    """No more than max_boxes are alive; the next caller waits its turn."""
    alive, most = 0, 0

    async def use() -> None:
        nonlocal alive, most
        async with runtime.box() as box:
            alive += 1
            most = max(most, alive)
            assert (await box.shell("sleep 0.05")).ok
            alive -= 1

    await asyncio.gather(*(use() for _ in range(10)))
    assert 1 < most <= 4


ECHO = "import sys\nfor line in sys.stdin: print(eval(line), flush=True)"


async def test_a_conversation_keeps_its_program(box: Box) -> None:
    """A program is asked again and again; when it is left, everything of it is gone and the box works on."""
    async with box.converse(["python3", "-I", "-c", ECHO], most_bytes=4096) as talk:
        assert await talk.ask("globals().setdefault('x', 41)", wall_seconds=20) == "41\n"
        assert await talk.ask("x + 1", wall_seconds=20) == "42\n"
        await talk.settle()
        assert talk.alive
    assert not talk.alive
    assert (await box.shell("echo fine")).stdout == "fine\n"


@pytest.mark.parametrize(
    ("question", "outcome"),
    [
        ("__import__('time').sleep(30)", Outcome.TIMEOUT),
        ("__import__('os')._exit(3)", Outcome.NONZERO),
        ("__import__('os').kill(__import__('os').getpid(), 9)", Outcome.KILLED),
        ("'x' * 10000", Outcome.KILLED),
    ],
)
async def test_a_conversation_that_ends_says_how(box: Box, question: str, outcome: Outcome) -> None:
    """Time, exit, signal and an answer that is too long end it with their outcome; the box works on."""
    async with box.converse(["python3", "-I", "-c", ECHO], most_bytes=4096) as talk:
        with pytest.raises(ConversationEnded) as caught:
            await talk.ask(question, wall_seconds=2)
        assert caught.value.result.outcome is outcome, caught.value.result
        with pytest.raises(ConversationEnded):
            await talk.ask("1", wall_seconds=2)
    assert (await box.shell("echo fine")).stdout == "fine\n"


async def test_a_conversation_fills_memory(runtime: Runtime) -> None:
    """A program that passes the box's memory is OOM."""
    async with runtime.box(BoxSpec(memory_mib=64)) as box:
        async with box.converse(["python3", "-I", "-c", ECHO], most_bytes=4096) as talk:
            with pytest.raises(ConversationEnded) as caught:
                await talk.ask("[bytearray(b'x') * (8 << 20) for _ in range(30)] and input()", wall_seconds=20)
                await talk.settle()
        assert caught.value.result.outcome is Outcome.OOM


async def test_closing_the_box_ends_a_conversation(runtime: Runtime) -> None:
    """A box that is closed under a conversation does not wait for it."""
    async with runtime.box() as box:
        async with box.converse(["python3", "-I", "-c", ECHO], most_bytes=4096) as talk:
            await box.close()
            with pytest.raises(ConversationEnded):
                await talk.ask("1", wall_seconds=5)
        with pytest.raises(SandboxError):
            async with box.converse(["true"], most_bytes=10):
                raise AssertionError("a closed box started a program")
