"""Keeps one session's Python alive inside a box and runs its calls, one JSON line in, one JSON line out.

Two processes: this driver, which only moves bytes, and the interpreter that it forks for the session's code. The
driver is never dumpable, so that code of the same user can neither read its memory nor write its answers; what
the code can do is end it, which ends the session's variables and nothing else. Between two calls the interpreter
is stopped and everything that it started is killed: an idle session costs no CPU.

Standard library only, because it runs under whatever Python the box has.
"""

# Code in the box may fail in any way; paths are plain strings as in the agent.
# ruff: noqa: BLE001, PTH103, PTH118, PTH120, PTH123, PTH208, S102, S307, S606, SIM115

import ast
import base64
import builtins
import contextlib
import ctypes
import errno
import json
import linecache
import os
import resource
import select
import signal
import socket
import stat
import sys
import time
import traceback
import types
from collections.abc import Callable
from typing import Any, NoReturn

PR_SET_DUMPABLE = 4
PR_SET_CHILD_SUBREAPER = 36
CHUNK = 1 << 16
FLOOD_FACTOR = 16
INTERRUPT_SECONDS = 1.0
MOST_CONTROL_BYTES = 1 << 16
MOST_FILES = 1_000
MOST_TOLD_FILES = 50
SEND_SECONDS = 10.0
libc = ctypes.CDLL(None, use_errno=True)


class Output:
    """One pipe from the code: the first ``keep`` bytes are kept, the rest is drained and dropped."""

    def __init__(self) -> None:
        self.read_end, self.write_end = os.pipe()
        os.set_blocking(self.read_end, False)
        self.begin(0)

    def begin(self, keep: int) -> None:
        """A call starts."""
        self.keep = keep
        self.total = 0
        self.data = bytearray()

    def drain(self) -> None:
        """Take what is there now."""
        while True:
            try:
                chunk = os.read(self.read_end, CHUNK)
            except BlockingIOError:
                return
            if not chunk:
                return
            self.total += len(chunk)
            self.data += chunk[: max(0, self.keep - len(self.data))]
            if self.flooded:
                return

    @property
    def flooded(self) -> bool:
        """Whether far more came than is kept."""
        return self.total > self.keep * FLOOD_FACTOR

    def close(self) -> None:
        """Free both ends."""
        for end in (self.read_end, self.write_end):
            if end >= 0:
                os.close(end)
        self.read_end = self.write_end = -1

    def close_write_end(self) -> None:
        """Leave the write end to the code alone."""
        os.close(self.write_end)
        self.write_end = -1


class Watch:
    """Time and output of one running call."""

    def __init__(self, request: dict[str, Any], outputs: "tuple[Output, Output]") -> None:
        self.started = time.monotonic()
        self.deadline = self.started + float(request["seconds"])
        self.outputs = outputs
        for output in outputs:
            output.begin(int(request["output_bytes"]))

    def reason(self) -> str | None:
        """Why the call has to be stopped now, if so."""
        if any(output.flooded for output in self.outputs):
            return "output_limit"
        return "timeout" if time.monotonic() >= self.deadline else None

    def wait(self, descriptors: "list[int]", until: float) -> "list[int]":
        """Drain outputs until one of the other descriptors is ready or ``until`` has come; at most a moment."""
        ends = [output.read_end for output in self.outputs]
        seconds = max(0.0, min(until - time.monotonic(), 0.5))
        poller = select.poll()
        for descriptor in (*descriptors, *ends):
            poller.register(descriptor, select.POLLIN)
        ready = [descriptor for descriptor, _ in poller.poll(int(seconds * 1000) + 1)]
        for output in self.outputs:
            output.drain()
        found = [descriptor for descriptor in ready if descriptor in descriptors]
        if ready and not found:
            time.sleep(0.001)  # an output whose writers have gone is always ready
        return found

    def reply(self, outcome: str, code: int | None) -> dict[str, Any]:
        """What the call printed and how it ended."""
        stdout, stderr = self.outputs
        return {
            "outcome": outcome,
            "exit_code": code,
            "stdout": stdout.data.decode(errors="replace"),
            "stderr": stderr.data.decode(errors="replace"),
            "stdout_truncated": stdout.total > stdout.keep,
            "stderr_truncated": stderr.total > stderr.keep,
            "seconds": time.monotonic() - self.started,
        }


class Interpreter:
    """The forked process that holds the session's variables."""

    def __init__(self) -> None:
        self.pid = 0

    def start(self) -> None:
        """Fork it."""
        self.outputs = (Output(), Output())
        self.control, inside = socket.socketpair()
        self.status: int | None = None
        pid = os.fork()
        if pid == 0:
            try:
                become_interpreter(inside, self.outputs)
            finally:
                os._exit(125)  # nothing of the fork may unwind into the driver
        self.pid = pid
        inside.close()
        for output in self.outputs:
            output.close_write_end()
        self.control.settimeout(SEND_SECONDS)

    def run(self, request: dict[str, Any]) -> dict[str, Any]:
        """Run one cell; a cell that has to be stopped is interrupted first, so that variables may survive."""
        fresh = self.pid == 0
        if fresh:
            self.start()
        watch = Watch(request, self.outputs)
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGCONT)
        cell = {"code": request["code"], "cpu_seconds": request["cpu_seconds"]}
        try:
            self.control.sendall(json.dumps(cell).encode() + b"\n")
        except OSError:
            self.kill()
        answer, cause = self.wait(watch)
        for output in self.outputs:
            output.drain()
        if answer is None:
            status = self.kill()
            reply = watch.reply(cause or died(status), None)
            reply["restarted"] = True
            self.forget()
            return reply
        os.kill(self.pid, signal.SIGSTOP)
        code = answer.get("exit_code")
        code = code if isinstance(code, int) else 1
        return watch.reply(cause or ("ok" if code == 0 else "nonzero"), code)

    def wait(self, watch: Watch) -> "tuple[dict[str, Any] | None, str | None]":
        """The interpreter's own answer, if it gives one, and why it had to be interrupted, if so."""
        received = b""
        cause: str | None = None
        until = watch.deadline
        while True:
            if watch.wait([self.control.fileno()], until):
                chunk = receive(self.control)
                received += chunk
                if not chunk or len(received) > MOST_CONTROL_BYTES:
                    return None, cause
                if received.endswith(b"\n"):
                    return parse(received), cause
            if cause is None:
                cause = watch.reason()
                if cause is not None:
                    os.kill(self.pid, signal.SIGINT)
                    until = time.monotonic() + INTERRUPT_SECONDS
            elif time.monotonic() >= until:
                return None, cause

    def kill(self) -> int:
        """End it and return its wait status."""
        if self.status is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
            _, self.status = os.waitpid(self.pid, 0)
        return self.status

    def forget(self) -> None:
        """Let the next call start a fresh one."""
        self.control.close()
        for output in self.outputs:
            output.close()
        self.pid = 0


class Driver:
    """Answers requests until standard input ends."""

    def __init__(self) -> None:
        self.interpreter = Interpreter()
        self.operations: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
            "python": self.python,
            "shell": self.shell,
            "read": self.read,
            "write": self.write,
        }

    def serve(self, incoming: Any, outgoing: Any) -> None:
        """One line after another."""
        for line in incoming:
            request = json.loads(line)
            try:
                reply = self.operations[request["op"]](request)
            except OSError as error:
                reply = {"errno": error.errno or errno.EIO, "message": error.strerror or str(error)}
            self.clear()
            outgoing.write(json.dumps(reply).encode() + b"\n")
            outgoing.flush()

    def python(self, request: dict[str, Any]) -> dict[str, Any]:
        """Run a cell and tell which files it made or changed."""
        before = listing()
        reply = self.interpreter.run(request)
        after = listing()
        changed = [[path, seen[1]] for path, seen in after.items() if before.get(path) != seen]
        reply["files"] = changed[:MOST_TOLD_FILES]
        return reply

    def shell(self, request: dict[str, Any]) -> dict[str, Any]:
        """Run a command line in a process of its own."""
        outputs = (Output(), Output())
        watch = Watch(request, outputs)
        pid = os.fork()
        if pid == 0:
            try:
                become_shell(request, outputs)
            finally:
                os._exit(125)
        watched = os.pidfd_open(pid)
        for output in outputs:
            output.close_write_end()
        cause: str | None = None
        try:
            while cause is None and not watch.wait([watched], watch.deadline):
                cause = watch.reason()
            if cause is not None:
                os.kill(pid, signal.SIGKILL)
            _, status = os.waitpid(pid, 0)
            self.clear()
            for output in outputs:
                output.drain()
        finally:
            os.close(watched)
            for output in outputs:
                output.close()
        code = os.waitstatus_to_exitcode(status)
        if cause is None:
            cause = died(status) if code < 0 else "ok" if code == 0 else "nonzero"
        return watch.reply(cause, code if code >= 0 else None)

    def read(self, request: dict[str, Any]) -> dict[str, Any]:
        """A regular file's content."""
        opened = os.open(request["path"], os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(opened, "rb") as file:
            facts = os.fstat(opened)
            if not stat.S_ISREG(facts.st_mode):
                raise OSError(errno.EACCES, "not a regular file")
            if facts.st_size > request["max_bytes"]:
                raise OSError(errno.EFBIG, f"the file is larger than {request['max_bytes']} bytes")
            data = file.read(request["max_bytes"])
        return {"data": base64.b64encode(data).decode()}

    def write(self, request: dict[str, Any]) -> dict[str, Any]:
        """Create or replace a file, with its parent folders."""
        folder = os.path.dirname(request["path"])
        if folder:
            os.makedirs(folder, exist_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_NONBLOCK | os.O_CLOEXEC
        with os.fdopen(os.open(request["path"], flags, 0o644), "wb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise OSError(errno.EACCES, "not a regular file")
            file.truncate(0)
            file.write(base64.b64decode(request["data"]))
        return {"done": True}

    def clear(self) -> None:
        """Kill and reap whatever calls have left running; the interpreter itself stays."""
        while True:
            left = [pid for pid in below(os.getpid()) if pid != self.interpreter.pid]
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            for pid in left:
                with contextlib.suppress(ChildProcessError):  # not ours yet: its parent dies in this round
                    os.waitpid(pid, 0)
            if not left:
                return


def receive(control: socket.socket) -> bytes:
    """What the interpreter sends; nothing when it is gone."""
    with contextlib.suppress(OSError):
        return control.recv(CHUNK)
    return b""


def parse(line: bytes) -> dict[str, Any] | None:
    """The interpreter's answer, or None for what is none: code has taken its place."""
    with contextlib.suppress(ValueError, RecursionError):
        answer = json.loads(line)
        return answer if isinstance(answer, dict) else None
    return None


def died(status: int) -> str:
    """How a process that ended by itself is called."""
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGXCPU:
        return "timeout"
    return "killed"


def below(root: int) -> "list[int]":
    """Every process below ``root`` that has not been reaped."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat") as file:
                    parent = int(file.read().rpartition(")")[2].split()[1])
            except (OSError, ValueError, IndexError):
                continue  # it ended while we looked
            children.setdefault(parent, []).append(int(name))
    found: list[int] = []
    queue = [root]
    while queue:
        more = children.get(queue.pop(), [])
        found += more
        queue += more
    return found


def listing() -> "dict[str, tuple[int, int]]":
    """Relative path → time of change and size of the regular files in the current folder."""
    found: dict[str, tuple[int, int]] = {}
    for folder, names, files in os.walk("."):
        names[:] = [name for name in names if not name.startswith((".", "__pycache__"))]
        for name in files:
            path = os.path.join(folder, name)
            with contextlib.suppress(OSError, UnicodeError):
                facts = os.lstat(path)
                path[2:].encode()
                if stat.S_ISREG(facts.st_mode):
                    found[path[2:]] = (facts.st_mtime_ns, facts.st_size)
            if len(found) >= MOST_FILES:
                return found
    return found


def enter(outputs: "tuple[Output, Output]", keep: int | None) -> None:
    """In a fork: a session of its own, its outputs, nothing on standard input, no other descriptor."""
    os.setsid()
    libc.prctl(PR_SET_DUMPABLE, 1, 0, 0, 0)
    null = os.open("/dev/null", os.O_RDONLY)
    for target, descriptor in ((0, null), (1, outputs[0].write_end), (2, outputs[1].write_end)):
        os.dup2(descriptor, target)
    if keep is None:
        os.closerange(3, 1024)
    else:
        os.dup2(keep, 3)
        os.closerange(4, 1024)
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def become_shell(request: dict[str, Any], outputs: "tuple[Output, Output]") -> NoReturn:
    """In the fork: the limits of one command, then the shell."""
    enter(outputs, None)
    limit_cpu(int(request["cpu_seconds"]))
    os.execv("/bin/sh", ["/bin/sh", "-c", request["command"]])


def become_interpreter(inside: socket.socket, outputs: "tuple[Output, Output]") -> NoReturn:
    """In the fork: take cells from descriptor 3 until it ends."""
    enter(outputs, inside.fileno())
    inside.detach()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    os.set_inheritable(3, False)
    sys.argv = ["-c"]
    sys.stdin = open(0, encoding="utf-8", closefd=False)
    sys.stdout = sys.__stdout__ = open(1, "w", encoding="utf-8", closefd=False)  # type: ignore[misc]
    sys.stderr = sys.__stderr__ = open(2, "w", encoding="utf-8", errors="backslashreplace", closefd=False)  # type: ignore[misc]
    module = types.ModuleType("__main__")
    module.__dict__["__builtins__"] = builtins
    sys.modules["__main__"] = module
    number = 0
    with open(3, "rb") as cells:
        for line in cells:
            number += 1
            request = json.loads(line)
            limit_cpu(int(request["cpu_seconds"]))
            code = run_cell(request["code"], module.__dict__, f"<cell {number}>")
            os.write(3, json.dumps({"exit_code": code}).encode() + b"\n")
    os._exit(0)


def run_cell(source: str, variables: dict[str, Any], name: str) -> int:
    """Run one cell as an interactive interpreter would: the value of a last expression is shown."""
    code = 0
    try:
        linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
        tree = ast.parse(source, name)
        last = tree.body[-1] if tree.body else None
        shown = None
        if isinstance(last, ast.Expr):
            tree.body.pop()
            shown = compile(ast.Expression(last.value), name, "eval", dont_inherit=True)
        whole = compile(tree, name, "exec", dont_inherit=True)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        exec(whole, variables)
        if shown is not None:
            value = eval(shown, variables)
            if value is not None:
                variables["_"] = value
                sys.stdout.write(f"{value!r}\n")
        sys.stdout.flush()
    except SystemExit as leaving:
        code = leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
    except BaseException as error:
        code = 1
        show(error)
    finally:
        with contextlib.suppress(ValueError, TypeError):
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()
    return code


def show(error: BaseException) -> None:
    """Print the traceback from the cell on."""
    trace = error.__traceback__.tb_next if error.__traceback__ else None
    try:
        traceback.print_exception(type(error), error, trace)
    except BaseException as broken:  # an exception whose text cannot be made
        sys.stderr.write(f"{type(error).__name__} (its message cannot be shown: {type(broken).__name__})\n")


def limit_cpu(seconds: int) -> None:
    """CPU time for the coming call, beyond what this process has used; never above the hard limit."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    _, ceiling = resource.getrlimit(resource.RLIMIT_CPU)
    soft = int(used.ru_utime + used.ru_stime) + 1 + seconds
    if ceiling != resource.RLIM_INFINITY:
        soft = min(soft, ceiling)
    resource.setrlimit(resource.RLIMIT_CPU, (soft, ceiling))


def main() -> None:
    """Serve on standard input and output."""
    libc.prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    Driver().serve(sys.stdin.buffer, sys.stdout.buffer)


if __name__ == "__main__":
    main()
