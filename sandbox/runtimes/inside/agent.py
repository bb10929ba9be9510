"""The only process of Hone inside a box: it starts commands there, kills all that they leave, moves files.

It speaks over one SOCK_SEQPACKET socket that it finds as descriptor 0. A packet ``r`` carries descriptors:
a sealed memory file with a JSON request, then what the operation needs. A packet ``k`` kills the running
command. Each request is answered by one JSON packet. The end of the socket ends the box.

Standard library only, because it runs under whatever Python the box has. Python code runs in a fork of this
process, so that a snippet does not pay for the start of an interpreter. The agent is never dumpable, so code
of the same uid cannot look into it or write to its memory; as process 1 of the box no signal from inside can
end it.
"""

# Paths are plain strings: importing pathlib would slow every start. Code in the box may fail in any way.
# ruff: noqa: BLE001, PTH123, PTH208, S102, S606, SIM115, T201

import atexit
import builtins
import contextlib
import ctypes
import errno
import itertools
import json
import os
import resource
import select
import signal
import socket
import stat
import sys
import threading
import types
from collections.abc import Callable
from typing import Any, NoReturn

PR_SET_DUMPABLE = 4
PR_SET_CHILD_SUBREAPER = 36
REAP_MILLISECONDS = 200
MOST_DESCRIPTORS = 8
MOST_LISTED = 1_000
DEEPEST = 32
CHUNK = 1 << 16
FAILURE = 125
libc = ctypes.CDLL(None, use_errno=True)


class Gone(Exception):
    """The other end of the socket closed: the box is over."""


class Agent:
    """Serves requests until the socket ends."""

    def __init__(self, control: socket.socket, config: dict[str, Any]) -> None:
        self.control = control
        self.work = str(config["work"])
        self.own_uid = config.get("own_uid")
        self.operations: dict[str, Callable[[dict[str, Any], list[int]], None]] = {
            "run": self.run,
            "write": self.write,
            "read": self.read,
            "list": self.list,
        }

    def serve(self) -> None:
        """Answer requests one after another; returns when the socket ends."""
        self.answer({"ready": True})
        while True:
            packet, descriptors, _, _ = socket.recv_fds(self.control, 1, MOST_DESCRIPTORS)
            if not packet:
                return
            if packet != b"r":  # a kill that came when the command had just ended
                continue
            try:
                request = json.loads(read_all(descriptors[0]))
                self.operations[request["op"]](request, descriptors[1:])
            except OSError as error:
                self.answer({"errno": error.errno or errno.EIO, "message": error.strerror or str(error)})
            except ValueError as error:  # a path or text that no system call takes
                self.answer({"errno": errno.EINVAL, "message": str(error)})
            finally:
                for descriptor in descriptors:
                    os.close(descriptor)

    def answer(self, reply: dict[str, Any]) -> None:
        self.control.send(json.dumps(reply).encode())

    def run(self, request: dict[str, Any], streams: list[int]) -> None:
        """Run a command to its end, then kill whatever it left behind."""
        report, report_end = os.pipe()
        try:
            pid = os.fork()
        except OSError as error:
            os.close(report)
            os.close(report_end)
            self.answer({"start_failed": f"fork: {error.strerror}"})
            return
        if pid == 0:
            self.control.detach()
            try:
                become_command(request, streams, report_end, self.work)
            finally:
                os._exit(FAILURE)  # nothing of the fork may unwind into the loop
        os.close(report_end)
        for stream in streams:  # or the reader outside would never see their end
            os.dup2(0, stream)
        failure = read_all(report)
        os.close(report)
        self.wait(pid)
        _, status, usage = os.wait4(pid, 0)
        self.kill_everything()
        self.answer(
            {"start_failed": failure.decode(errors="replace")}
            if failure
            else {"status": status, "cpu": usage.ru_utime + usage.ru_stime, "rss_kib": usage.ru_maxrss}
        )

    def wait(self, pid: int) -> None:
        """Return once ``pid`` has ended, reaping orphans and obeying kills meanwhile."""
        watched = os.pidfd_open(pid)
        poller = select.poll()
        poller.register(watched, select.POLLIN)
        poller.register(self.control, select.POLLIN)
        try:
            while True:
                ready = [descriptor for descriptor, _ in poller.poll(REAP_MILLISECONDS)]
                if watched in ready:
                    return
                if self.control.fileno() in ready:
                    if not self.control.recv(1):
                        raise Gone
                    self.kill()
                reap_orphans(pid)
        finally:
            os.close(watched)

    def kill_everything(self) -> None:
        """Kill and reap until no descendant is left; orphans come to this process."""
        while True:
            self.kill()
            try:
                os.waitpid(-1, 0)
            except ChildProcessError:
                return

    def kill(self) -> None:
        if os.getpid() == 1 or (self.own_uid and self.own_uid == os.getuid()):
            try:
                os.kill(-1, signal.SIGKILL)  # everything in the pid namespace, or of the private uid
            except ProcessLookupError:
                return
        else:
            for pid in descendants(os.getpid()):
                kill_one(pid)

    def write(self, request: dict[str, Any], descriptors: list[int]) -> None:
        """Create or replace files from their texts, or one file from a descriptor."""
        for path, text in request.get("files", {}).items():
            with os.fdopen(open_beneath(self.work, path, create=True), "wb") as file:
                file.write(text.encode(errors="replace"))
        if "path" in request:
            with os.fdopen(open_beneath(self.work, request["path"], create=True), "wb") as file:
                file.write(read_all(descriptors[0]))
        self.answer({"done": True})

    def read(self, request: dict[str, Any], descriptors: list[int]) -> None:
        """Send a regular file down a pipe, never more than ``max_bytes``."""
        opened = open_beneath(self.work, request["path"])
        try:
            if os.fstat(opened).st_size > request["max_bytes"]:
                raise OSError(errno.EFBIG, f"the file is larger than {request['max_bytes']} bytes")
            data = read_all(opened, request["max_bytes"])
        finally:
            os.close(opened)
        self.send_down(data, descriptors[0])

    def list(self, request: dict[str, Any], descriptors: list[int]) -> None:
        """Send the sorted relative paths below a folder as JSON down a pipe."""
        waiting = [split_beneath(request["path"])]
        found: list[str] = []
        while waiting and len(found) < MOST_LISTED:
            parts = waiting.pop()
            folder = open_folder(self.work, parts, create=False)
            try:
                with os.scandir(folder) as entries:
                    for entry in itertools.islice(entries, MOST_LISTED):
                        if entry.is_dir(follow_symlinks=False):
                            if len(parts) < DEEPEST:
                                waiting.append([*parts, entry.name])
                        else:
                            found.append("/".join([*parts, entry.name]))
            finally:
                os.close(folder)
        self.send_down(json.dumps(sorted(found)[:MOST_LISTED]).encode(), descriptors[0])

    def send_down(self, data: bytes, pipe: int) -> None:
        self.answer({"done": True})
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(pipe, view) :]
        except BrokenPipeError:
            return  # the reader has enough


def become_command(request: dict[str, Any], streams: list[int], report: int, work: str) -> NoReturn:
    """In the fork: take on the limits and become the command; failures to start go to ``report``."""
    try:
        os.setsid()
        libc.prctl(PR_SET_DUMPABLE, 1, 0, 0, 0)
        for target, stream in enumerate(streams):
            os.dup2(stream, target)
        os.closerange(3, report)
        os.closerange(report + 1, 256)
        prefer_for_oom()
        os.chdir(work)
        for name, wanted in request["rlimits"].items():
            set_limit(getattr(resource, name), wanted)
        for number in (signal.SIGINT, signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_DFL)
        os.environ.clear()
        os.environ.update(request["env"])
    except BaseException as error:
        os.write(report, f"{type(error).__name__}: {error}".encode()[:500])
        os._exit(FAILURE)
    if "code" in request:
        os.close(report)
        run_python(request)
    execute(request, report)


def set_limit(kind: int, wanted: "tuple[int, int]") -> None:
    """Set a resource limit, never above the hard limit that is there."""
    _, ceiling = resource.getrlimit(kind)
    soft, hard = wanted
    if ceiling != resource.RLIM_INFINITY:
        soft, hard = min(soft, ceiling), min(hard, ceiling)
    resource.setrlimit(kind, (soft, hard))


def prefer_for_oom() -> None:
    """Have the kernel choose the command and never this agent when the box's memory group is full."""
    try:
        with open("/proc/self/oom_score_adj", "w") as score:
            score.write("1000")
    except OSError:  # landlock of the process runtime, which has no memory group: nothing is lost
        return


def execute(request: dict[str, Any], report: int) -> NoReturn:
    """Replace the fork by a program, with a shell's exit codes when it cannot be run."""
    argv, environment = request["argv"], request["env"]
    try:
        os.execvpe(argv[0], argv, environment)
    except (FileNotFoundError, NotADirectoryError):
        message, code = f"{argv[0]}: not found\n", 127
    except (PermissionError, ValueError, OSError) as error:
        message, code = f"{argv[0]}: {error}\n", 126
    os.close(report)
    os.write(2, message.encode(errors="replace"))
    os._exit(code)


def run_python(request: dict[str, Any]) -> NoReturn:
    """Run code in a fresh ``__main__`` as ``python3 -I -c`` would; ends the interpreter the ordinary way."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    sys.argv = ["-c", *request["argv"]]
    sys.stdin = sys.__stdin__ = open(0, encoding="utf-8", errors="surrogateescape", closefd=False)  # type: ignore[misc]
    sys.stdout = sys.__stdout__ = open(1, "w", encoding="utf-8", closefd=False)  # type: ignore[misc]
    sys.stderr = sys.__stderr__ = open(  # type: ignore[misc]
        2, "w", encoding="utf-8", errors="backslashreplace", buffering=1, closefd=False
    )
    module = types.ModuleType("__main__")
    module.__dict__["__builtins__"] = builtins
    sys.modules["__main__"] = module
    code = 0
    try:
        exec(compile(request["code"], "<string>", "exec", dont_inherit=True), module.__dict__)
    except SystemExit as leaving:
        code = exit_code(leaving)
    except BaseException as error:
        trace = error.__traceback__.tb_next if error.__traceback__ else None
        sys.excepthook(type(error), error.with_traceback(trace), trace)
        code = 1
    finish(code)


def exit_code(leaving: SystemExit) -> int:
    """What the interpreter makes of ``sys.exit(…)``."""
    if leaving.code is None or isinstance(leaving.code, int):
        return (leaving.code or 0) & 0xFF
    print(leaving.code, file=sys.stderr)
    return 1


def finish(code: int) -> NoReturn:
    """End as the interpreter does (threads, exit handlers, buffers) without tearing down every module.

    The tear-down costs more than a typical snippet; all it would add are finalizers of objects still alive.
    """
    try:
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        sys.stdout.flush()
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
        code = code or 120
    try:
        sys.stderr.flush()
    finally:
        os._exit(code)


def read_all(descriptor: int, most: int | None = None) -> bytes:
    """Everything from a descriptor's position to its end, or the first ``most`` bytes."""
    chunks, left = [], most
    while left is None or left > 0:
        chunk = os.read(descriptor, CHUNK if left is None else min(CHUNK, left))
        if not chunk:
            break
        chunks.append(chunk)
        if left is not None:
            left -= len(chunk)
    return b"".join(chunks)


def split_beneath(path: str) -> list[str]:
    """The parts of a path that stays below the work folder; PermissionError for any other."""
    parts = [part for part in path.split("/") if part not in ("", ".")]
    if path.startswith("/") or ".." in parts or "\0" in path:
        raise PermissionError(errno.EACCES, "the path must be relative and stay in the work folder")
    return parts


def open_folder(work: str, parts: list[str], *, create: bool) -> int:
    """A descriptor of a folder, reached without following any symbolic link."""
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    current = os.open(work, flags)
    for part in parts:
        try:
            if create:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(part, 0o755, dir_fd=current)
            following = os.open(part, flags, dir_fd=current)
        finally:
            os.close(current)
        current = following
    return current


def open_beneath(work: str, path: str, *, create: bool = False) -> int:
    """A descriptor of a regular file: no link is followed, a FIFO or device never blocks and is refused."""
    parts = split_beneath(path)
    if not parts:
        raise IsADirectoryError(errno.EISDIR, "the path names the work folder")
    folder = open_folder(work, parts[:-1], create=create)
    flags = (os.O_WRONLY | os.O_CREAT) if create else os.O_RDONLY
    try:
        opened = os.open(parts[-1], flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o644, dir_fd=folder)
    finally:
        os.close(folder)
    kind = os.fstat(opened).st_mode
    if not stat.S_ISREG(kind):
        os.close(opened)
        code = errno.EISDIR if stat.S_ISDIR(kind) else errno.EACCES
        raise OSError(code, "not a regular file")
    if create:
        os.ftruncate(opened, 0)
    return opened


def reap_orphans(main: int) -> None:
    """Reap ended children other than ``main``, whose usage is still wanted."""
    while True:
        ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if ended is None or ended.si_pid == main:
            return
        os.waitpid(ended.si_pid, os.WNOHANG)


def descendants(root: int) -> list[int]:
    """The processes below ``root``, by the kernel's list of children."""
    found: list[int] = []
    queue = [root]
    while queue:
        pid = queue.pop()
        try:
            for thread in os.listdir(f"/proc/{pid}/task"):
                with open(f"/proc/{pid}/task/{thread}/children") as children:
                    queue += [int(child) for child in children.read().split()]
        except (FileNotFoundError, ProcessLookupError):
            continue  # it ended while we looked
        found.append(pid)
    return found[1:]


def kill_one(pid: int) -> None:
    """SIGKILL one process if it is still there."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def main() -> None:
    """Take over descriptor 0 as the socket, close everything else, serve."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # or code could interrupt process 1
    control = socket.socket(fileno=os.dup(0))
    null = os.open("/dev/null", os.O_RDWR)
    for target in (0, 1, 2):
        os.dup2(null, target)
    kept = control.fileno()
    os.closerange(3, kept)
    os.closerange(kept + 1, 1024)
    libc.prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    agent = Agent(control, json.loads(sys.argv[1]))
    try:
        # When the worker goes away there is nobody left to answer: the box ends.
        with contextlib.suppress(Gone, ConnectionError):
            agent.serve()
    finally:
        agent.kill_everything()


if __name__ == "__main__":
    main()
