"""Builds the C parts of the benchmark and runs the mock engine."""

import json
import socket
import subprocess
import time
import urllib.request
from pathlib import Path
from typing import Any

from bench.gateway.machine import LOAD_CORE, pinned

HERE = Path(__file__).parent
BUILD = HERE.parent / ".build"
_OPTIONS = ("-O2", "-std=gnu11", "-Wall", "-Wextra")


def build() -> None:
    """Compile what is older than its source."""
    BUILD.mkdir(exist_ok=True)
    for name in ("mock", "load"):
        sources = [HERE / f"{name}.c", HERE / "answers.h"]
        program = BUILD / name
        if program.exists() and all(program.stat().st_mtime > source.stat().st_mtime for source in sources):
            continue
        subprocess.run(["gcc", *_OPTIONS, "-o", str(program), str(sources[0])], check=True)


def free_port() -> int:
    """A port that nothing listens on at the moment."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def wait_for(url: str, process: subprocess.Popen[bytes], seconds: float = 120.0) -> None:
    """Wait until ``url`` answers; raises RuntimeError when the process ends first or the time is over."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if process.poll() is not None:
            raise RuntimeError(f"{process.args!r} ended with {process.returncode}")
        try:
            with urllib.request.urlopen(url, timeout=5):
                return
        except OSError:
            time.sleep(0.1)
    raise RuntimeError(f"{url} did not answer within {seconds:.0f} seconds")


class MockEngine:
    """The mock engine on the load core; use it as a context."""

    def __init__(self, folder: Path) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.stamps = folder / "stamps"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """The running process."""
        assert self._process is not None
        return self._process.pid

    def __enter__(self) -> "MockEngine":
        command = [str(BUILD / "mock"), str(self.port), str(self.stamps)]
        self._process = subprocess.Popen(pinned(LOAD_CORE, command))
        wait_for(f"{self.url}/health", self._process)
        return self

    def __exit__(self, *exception: object) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def ask(self, body: bytes) -> bytes:
        """The answer to one request."""
        request = urllib.request.Request(f"{self.url}/v1/chat/completions", data=body, method="POST")
        with urllib.request.urlopen(request, timeout=10) as answer:
            found: bytes = answer.read()
            return found

    def stats(self) -> dict[str, Any]:
        """How many answers were begun and finished."""
        with urllib.request.urlopen(f"{self.url}/stats", timeout=10) as answer:
            found: dict[str, Any] = json.load(answer)
            return found


def token_ids(counter: int, tokens: int = 60) -> tuple[int, ...]:
    """The ids of an answer, as ``answers.h`` derives them from its counter."""
    return tuple(10000 + (counter * 61 + index * 7919) % 2**32 % 90000 for index in range(tokens))


def logprobs(counter: int, tokens: int = 60) -> tuple[float, ...]:
    """The log-probs of an answer, as ``answers.h`` derives them from its counter."""
    digits = (1 + (counter * 7919 + index * 104729) % 2**32 % 8999999 for index in range(tokens))
    return tuple(float(f"-0.{value:07d}123706817") for value in digits)
