"""What code in a bubblewrap box must not be able to do, tried for real."""

import json
import os
import socket
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import pytest_asyncio

from core.config.sandbox import SandboxSection
from core.errors import MachineError, SandboxError
from sandbox.runtimes.base import BoxSpec, Outcome, Runtime
from sandbox.runtimes.bubblewrap import BubblewrapLauncher, Layout, bwrap_arguments
from sandbox.runtimes.local import LocalRuntime
from sandbox.runtimes.memory import WatcherGuards

pytestmark = pytest.mark.asyncio(loop_scope="module")
ROOT = Path(__file__).parents[2]
SYSTEM_FOLDERS = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
SECTION = SandboxSection(pool_size=0, max_boxes=4, wall_seconds=60, output_bytes=65_536, disk_mib=4)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def runtime() -> AsyncIterator[LocalRuntime]:
    """A started bubblewrap runtime; starting it has already passed the self-test."""
    made = LocalRuntime(section=SECTION, launcher=BubblewrapLauncher())
    await made.start()
    yield made
    await made.stop()


async def python(runtime: Runtime, code: str, **spec: object) -> str:
    """What a snippet prints in a fresh box."""
    async with runtime.box(BoxSpec(**spec)) as box:  # type: ignore[arg-type]
        result = await box.python(code)
    assert result.ok, result
    return result.stdout.strip()


async def test_host_files_are_not_there(runtime: LocalRuntime, tmp_path: Path) -> None:
    """Neither secrets nor files that any user may read are visible, nor anything but the declared root."""
    secret = tmp_path / "secret"
    secret.write_text("x")
    secret.chmod(0o644)
    code = f"import os; print([p for p in ({str(secret)!r}, '/etc/shadow', '/root', '/home') if os.path.exists(p)])"
    assert await python(runtime, code) == "[]"
    tops = set((await python(runtime, "import os; print(*os.listdir('/'))")).split())
    assert tops <= {*SYSTEM_FOLDERS, "usr", "etc", "proc", "dev", "tmp", "work", "readonly", "hone"}
    assert set((await python(runtime, "import os; print(*os.listdir('/etc'))")).split()) <= {
        *("alternatives", "ld.so.cache", "localtime", "passwd", "group")
    }


async def test_environment_is_empty(runtime: LocalRuntime, monkeypatch: pytest.MonkeyPatch) -> None:
    """The service's variables are seen neither by the code nor in any process it can look into."""
    monkeypatch.setenv("HONE_SECRET_FOR_TEST", "visible")
    code = (
        "import glob, os\n"
        "found = [dict(os.environ)]\n"
        "for path in glob.glob('/proc/[0-9]*/environ'):\n"
        "    try: found.append(open(path, 'rb').read())\n"
        "    except PermissionError: pass\n"
        "print('HONE' in str(found))\n"
    )
    assert await python(runtime, code) == "False"


async def test_never_root_on_the_host(runtime: LocalRuntime) -> None:
    """Seen from the host the box runs as an unprivileged uid, without capabilities."""
    async with runtime.box() as box:
        status = Path(f"/proc/{box.agent_pid}/status").read_text()
    fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    assert "0" not in fields["Uid"].split()
    assert "0" not in fields["Gid"].split()
    assert int(fields["CapEff"], 16) == int(fields["CapBnd"], 16) == 0
    assert (fields["NoNewPrivs"], fields["Seccomp"]) == ("1", "2")


async def test_live_boxes_have_different_uids(runtime: LocalRuntime) -> None:
    """As root, no two live boxes share a host uid."""
    if os.getuid() != 0:
        pytest.skip("without root all boxes run as the service's own user")
    async with runtime.box() as first, runtime.box() as second:
        assert Path(f"/proc/{first.agent_pid}/loginuid").exists()
        owners = [
            Path(f"/proc/{box.agent_pid}/status").read_text().split("Uid:")[1].split()[0] for box in (first, second)
        ]
        assert owners[0] != owners[1]


async def test_no_network(runtime: LocalRuntime) -> None:
    """TCP, UDP, unix sockets and vsock of the host cannot be reached."""
    name = f"hone-test-{uuid.uuid4().hex}"
    with socket.create_server(("127.0.0.1", 0)) as tcp, socket.socket(socket.AF_UNIX) as abstract:
        abstract.bind(f"\0{name}")
        abstract.listen()
        code = (
            "import socket\n"
            "def tried(family, kind, address):\n"
            "    try:\n"
            "        with socket.socket(family, kind) as s: s.settimeout(1); s.connect(address)\n"
            "    except OSError: return False\n"
            "    return True\n"
            f"print(tried(2, 1, ('127.0.0.1', {tcp.getsockname()[1]})), tried(2, 1, ('8.8.8.8', 53)),\n"
            f"    tried(2, 2, ('8.8.8.8', 53)), tried(1, 1, '\\0{name}'), tried(40, 1, (2, 1)),\n"
            "    [n for _, n in socket.if_nameindex()] if False else open('/proc/net/dev').read().count(':'))\n"
        )
        assert await python(runtime, code) == "False False False False False 1"


async def test_useful_programs_still_work(runtime: LocalRuntime) -> None:
    """The filter leaves subprocesses, threads, multiprocessing, asyncio and own sockets working."""
    code = (
        "import asyncio, multiprocessing, socket, subprocess, threading\n"
        "assert subprocess.run(['echo', 'x'], capture_output=True).stdout == b'x\\n'\n"
        "threads = [threading.Thread(target=sum, args=([1],)) for _ in range(8)]\n"
        "[t.start() for t in threads]; [t.join() for t in threads]\n"
        "with multiprocessing.get_context('fork').Pool(2) as pool: assert pool.map(abs, [-1, 2]) == [1, 2]\n"
        "async def main():\n"
        "    p = await asyncio.create_subprocess_exec('true'); return await p.wait()\n"
        "assert asyncio.run(main()) == 0\n"
        "with socket.create_server(('127.0.0.1', 0)) as server:\n"
        "    socket.create_connection(server.getsockname()).close()\n"
        "print('works')\n"
    )
    assert await python(runtime, code) == "works"


async def test_readonly_stays_readonly(runtime: LocalRuntime) -> None:
    """A read-only bind can be neither written nor remounted, and the root is read-only too."""
    code = (
        "import ctypes, os\n"
        "libc = ctypes.CDLL(None, use_errno=True)\n"
        "def made(path):\n"
        "    try: open(path, 'w')\n"
        "    except OSError: return False\n"
        "    return True\n"
        "print([libc.mount(None, p, None, 32 | 4096, None) for p in (b'/readonly', b'/usr', b'/')],\n"
        "    [made(p) for p in ('/readonly/t', '/readonly/n', '/usr/n', '/n', '/etc/n', '/dev/n',\n"
        "        '/hone/agent.py')])\n"
    )
    expected = "[-1, -1, -1] [False, False, False, False, False, False, False]"
    assert await python(runtime, code, readonly_files={"t": "x"}) == expected


async def test_kernel_settings_do_not_open(runtime: LocalRuntime) -> None:
    """core_pattern and other settings of the host's kernel do not open for writing."""
    code = (
        "import os\n"
        "got = []\n"
        "for root, _, names in os.walk('/proc/sys'):\n"
        "    for name in names:\n"
        "        path = os.path.join(root, name)\n"
        "        try: os.close(os.open(path, os.O_WRONLY)); got.append(path)\n"
        "        except OSError: pass\n"
        "print(got)\n"
    )
    assert await python(runtime, code) == "[]"


async def test_dangerous_calls_are_denied(runtime: LocalRuntime) -> None:
    """io_uring, keyctl, ptrace, unshare, setns, clone3 and namespaces by clone are refused."""
    code = (
        "import ctypes, errno, os, platform\n"
        "libc = ctypes.CDLL(None, use_errno=True)\n"
        "x86 = platform.machine() == 'x86_64'\n"
        "io_uring, clone3 = 425, 435\n"
        "keyctl, ptrace, unshare, setns, mount, clone = (\n"
        "    (250, 101, 272, 308, 165, 56) if x86 else (219, 117, 97, 268, 40, 220))\n"
        "for n in (io_uring, keyctl, ptrace, unshare, setns, mount, clone3):\n"
        "    if libc.syscall(n, 0x10000000, 0, 0, 0, 0) < 0: print(errno.errorcode[ctypes.get_errno()], end=' ')\n"
        "print(libc.syscall(clone, 0x10000000 | 17, 0, 0, 0, 0), errno.errorcode[ctypes.get_errno()])\n"
    )
    assert await python(runtime, code) == "EPERM EPERM EPERM EPERM EPERM EPERM ENOSYS -1 EPERM"


async def test_the_agent_is_out_of_reach(runtime: LocalRuntime) -> None:
    """Code can neither signal process 1, nor read or write its memory, nor use its descriptors."""
    code = (
        "import os, signal\n"
        "for name in ('KILL', 'STOP', 'INT', 'TERM', 'SEGV'): os.kill(1, getattr(signal, 'SIG' + name))\n"
        "got = []\n"
        "for name in ('mem', 'environ', 'fd', 'maps', 'root', 'cwd'):\n"
        "    try:\n"
        "        path = f'/proc/1/{name}'\n"
        "        os.listdir(path) if name in ('fd', 'root', 'cwd') else open(path, 'rb').read(1)\n"
        "        got.append(name)\n"
        "    except OSError: pass\n"
        "print(got, sorted(int(n) for n in os.listdir('/proc/self/fd'))[:-1])\n"
    )
    async with runtime.box() as box:
        result = await box.python(code)
        assert result.stdout.strip() == "[] [0, 1, 2]"
        assert (await box.shell("echo alive")).stdout == "alive\n"


async def test_only_own_processes_are_seen(runtime: LocalRuntime) -> None:
    """No process of the host is visible or can be signalled."""
    code = (
        "import os\n"
        "pids = [int(n) for n in os.listdir('/proc') if n.isdigit()]\n"
        "alive = []\n"
        f"for pid in range(3, {os.getpid() + 1}):\n"
        "    try: os.kill(pid, 0); alive.append(pid)\n"
        "    except OSError: pass\n"
        "print(len(pids), alive == [os.getpid()] or alive == [])\n"
    )
    assert await python(runtime, code) == "2 True"


@pytest.mark.parametrize("watcher", [False, True], ids=["strongest", "watcher"])
async def test_memory_hog_is_killed(watcher: bool) -> None:
    """One process, and several together, that hold too much are OOM, by cgroup and by watcher alike."""
    made = LocalRuntime(section=SECTION, launcher=BubblewrapLauncher(), guards=WatcherGuards() if watcher else None)
    await made.start()
    try:
        async with made.box(BoxSpec(memory_mib=64)) as box:
            one = await box.python("x = b'x' * (150 << 20); import time; time.sleep(20)")
            many = "import os\nfor _ in range(2): os.fork()\nx = b'x' * (40 << 20)\nimport time; time.sleep(20)"
            several = await box.python(many)
            files = await box.shell("echo alive")
        assert (one.outcome, several.outcome) == (Outcome.OOM, Outcome.OOM)
        assert files.stdout == "alive\n"
        kind = next(limit for limit in one.limits_enforced if limit.startswith("memory:"))
        assert kind == "memory:watcher" or not watcher
    finally:
        await made.stop()


async def test_disk_fill_is_stopped(runtime: LocalRuntime) -> None:
    """No writable folder takes more than its limit, in one file or in many."""
    code = (
        "import os\n"
        "for folder in ('/work', '/tmp', '/dev/shm'):\n"
        "    written = 0\n"
        "    try:\n"
        "        for i in range(20):\n"
        "            with open(f'{folder}/{i}', 'wb', buffering=0) as f: written += f.write(bytes(1 << 20))\n"
        "    except OSError: pass\n"
        "    print(written <= 4 << 20)\n"
    )
    assert await python(runtime, code) == "True\nTrue\nTrue"


async def test_gigabyte_flood_is_cut(runtime: LocalRuntime) -> None:
    """A gigabyte on stdout is stopped and costs the service no memory."""
    before = peak_rss()
    async with runtime.box() as box:
        result = await box.shell("head -c 1000000000 /dev/zero")
    assert result.outcome is Outcome.OUTPUT_LIMIT
    assert result.stdout_truncated and len(result.stdout) == SECTION.output_bytes
    assert peak_rss() - before < 64 << 10


async def test_nothing_is_left_after_close(runtime: LocalRuntime) -> None:
    """Daemons, descriptors, folders and memory groups are gone when a box is closed."""
    descriptors = set(os.listdir("/proc/self/fd"))
    async with runtime.box() as box:
        agent = box.agent_pid
        await box.shell("(setsid sleep 100 &) ; (setsid sleep 100 &) ; true")
    assert not Path(f"/proc/{agent}").exists()
    assert set(os.listdir("/proc/self/fd")) == descriptors
    assert not [cmd for cmd in command_lines() if f"hone-sandbox-{os.getpid()}-" in cmd]


async def test_setuid_programs_are_inert(runtime: LocalRuntime) -> None:
    """A setuid program gives no other user."""
    async with runtime.box() as box:
        result = await box.shell("su -c id 2>&1; id -u")
    assert result.stdout.splitlines()[-1] == "1000"


def without(*removed: str) -> Callable[[Layout, int], list[str]]:
    """The fixed flags without a run of them: a wall with a hole."""

    def arguments(layout: Layout, seccomp: int) -> list[str]:
        flags = bwrap_arguments(layout, seccomp)
        size = len(removed)
        start = next(i for i in range(len(flags)) if tuple(flags[i : i + size]) == removed)
        return flags[:start] + flags[start + size :]

    return arguments


def shared_net(layout: Layout, seccomp: int) -> list[str]:
    """The fixed flags with the host's network."""
    return ["--unshare-all", "--share-net", *bwrap_arguments(layout, seccomp)[1:]]


def host_tmp(layout: Layout, seccomp: int) -> list[str]:
    """The fixed flags with the host's temporary folder in sight."""
    return [*bwrap_arguments(layout, seccomp), "--bind", "/tmp", "/tmp"]


def no_filter(layout: Layout, seccomp: int) -> list[str]:
    """The fixed flags without the system-call filter, and without the ban on nested namespaces."""
    flags = bwrap_arguments(layout, seccomp)
    return [flag for flag in flags[:-2] if flag != "--disable-userns"]


@pytest.mark.parametrize(
    ("arguments", "probe"),
    [
        (no_filter, "syscalls"),
        (no_filter, "namespaces"),
        (shared_net, "interfaces"),
        (host_tmp, "host_files"),
        (without("--size", str(2 << 20)), "disk"),
    ],
    ids=["no-filter", "no-filter-namespaces", "host-net", "host-tmp", "unlimited-shm"],
)
async def test_self_test_refuses(arguments: Callable[[Layout, int], list[str]], probe: str) -> None:
    """A wall with a hole does not start; the error names the probe that got through."""
    weak = LocalRuntime(section=SECTION, launcher=BubblewrapLauncher(arguments=arguments))
    with pytest.raises(SandboxError, match=probe):
        await weak.start()
    with pytest.raises(SandboxError):
        async with weak.box():
            raise AssertionError("a refused sandbox gave a box")


async def test_broken_wall_is_an_infrastructure_error() -> None:
    """A bubblewrap that does not start is a SandboxError with its own words; a missing one a MachineError."""
    broken = LocalRuntime(
        section=SECTION, launcher=BubblewrapLauncher(arguments=lambda layout, seccomp: ["--no-such-flag"])
    )
    with pytest.raises(SandboxError, match="no-such-flag"):
        await broken.start()
    missing = LocalRuntime(section=SECTION, launcher=BubblewrapLauncher(bwrap="no-such-bwrap"))
    with pytest.raises(MachineError, match="no-such-bwrap"):
        await missing.start()


async def test_without_root() -> None:
    """The same contract and the same isolation hold for a service that is not root."""
    python_program = "/usr/bin/python3"
    same = subprocess.run([python_program, "-V"], capture_output=True, text=True, check=False).stdout.split()[-1:]
    wanted = f"{sys.version_info.major}.{sys.version_info.minor}."
    if os.getuid() != 0 or not same or not same[0].startswith(wanted):
        pytest.skip("needs root to become another user, and a system Python of the same version")
    packages = Path(pytest.__file__).parents[1]
    command = [
        *("setpriv", "--reuid=60999", "--regid=60999", "--clear-groups", "--"),
        *(
            python_program,
            "-m",
            "pytest",
            "-q",
            "-x",
            "-p",
            "no:cacheprovider",
            "--noconftest",
            "--rootdir",
            str(ROOT),
        ),
        *(str(ROOT / "tests/contract/test_runtime_contract.py"), str(Path(__file__))),
        *("-k", "not without_root", "--no-header"),
    ]
    environment = {
        "PATH": "/usr/bin:/bin",
        "PYTHONPATH": f"{ROOT}:{packages}",
        "HOME": "/nonexistent",
        "LANG": "C.UTF-8",
    }
    probe = subprocess.run(
        [*command[:5], python_program, "-c", "import pytest_asyncio, pydantic, structlog, core.config.schema"],
        env=environment, cwd="/", capture_output=True, check=False,
    )  # fmt: skip
    if probe.returncode != 0:
        pytest.skip("the packages or the project are not readable for other users")
    done = subprocess.run(command, env=environment, cwd="/", capture_output=True, text=True, check=False)
    assert done.returncode == 0, json.dumps(done.stdout[-3000:] + done.stderr[-1000:])


def peak_rss() -> int:
    """The largest memory that this process has had, in KiB."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1])


def command_lines() -> list[str]:
    """The command lines of every process."""
    lines = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            lines.append(path.read_bytes().replace(b"\0", b" ").decode(errors="replace"))
        except OSError:
            continue
    return lines
