"""Runs the load generator against one target and measures the window: rates, latencies, CPU, foreign load."""

import json
import subprocess
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from bench.gateway.machine import (
    GATEWAY_CORE,
    LOAD_CORE,
    core_busy_seconds,
    pinned,
    process_cpu_seconds,
    tree_cpu_seconds,
)
from bench.gateway.native import BUILD

NOISE = 0.12
"""Largest share of either core that others may take in a window that counts as quiet."""
TRIES = 4
_QUIET_SECONDS = 0.3
_LONGEST_WAIT_SECONDS = 10.0


@dataclass(frozen=True)
class Workload:
    """What is asked of a target."""

    name: str
    connections: int
    stream: bool = False
    pace_ms: int = 0
    large: bool = False
    """The client itself asks for ids and log-probs."""
    seconds: float = 5.0
    warmup: float = 0.7
    requests: int = 0
    """End after so many answers instead."""
    drain: float = 20.0
    """Longest wait for the answers that are under way when the window ends."""


@dataclass(frozen=True)
class Target:
    """Something that answers; ``pid`` 0: the mock engine itself, asked directly."""

    name: str
    port: int
    pid: int
    key: str = "sk-bench"
    model: str = "base"
    exact: bool = True
    """The answer must be, byte by byte, what the engine answers to a request without log-probs."""


@dataclass
class Window:
    """One measured window."""

    target: str
    workload: str
    requests_per_second: float
    events_per_second: float
    cpu_us_per_request: float
    cpu_us_per_event: float
    cpu_share: float
    """Of the gateway's core, by the target."""
    foreign_share: float
    """Of the gateway's core, by anything else."""
    load_core_share: float
    """Of the other core, by anything."""
    load_core_foreign_share: float
    """Of the other core, by anything but the mock engine and the load generator."""
    detail: dict[str, Any]
    counters: Path | None = None
    tries: int = 1
    quiet: bool = field(default=True)

    @property
    def noise(self) -> float:
        """The larger share of a core that others took."""
        return max(self.foreign_share, self.load_core_foreign_share)

    def percentile(self, name: str, which: str) -> float | None:
        """Milliseconds, such as ``("latency", "p50")``; None where nothing was seen."""
        found = self.detail.get(f"{name}_ms")
        return None if found is None else float(found[which])


_SYSTEM = (
    "You are a careful coding agent. Answer briefly, call a tool where it knows more than you do, never guess what a "
    "file holds, and say what you have changed and why when you are done with the task that you were given by the "
    "user, in two sentences."
)


def request_body(workload: Workload, model: str) -> bytes:
    """The request: four messages and a tool, as agents send them. The last message differs from request to request,
    so that no answer is one to a known question; what stands before it is the same, as examples in a prompt are."""
    text = "The quick brown fox jumps over the lazy dog while the agent reads another file. "
    body: dict[str, Any] = {
        "model": model,
        "messages": [
            {"role": "system", "content": _SYSTEM},
            {"role": "user", "content": text + "What is the weather in Paris?"},
            {"role": "assistant", "content": text},
            {"role": "user", "content": text + "Go on, and say why. (@@@@@@@@)"},
        ],
        "tools": [
            {
                "type": "function",
                "function": {
                    "name": "get_weather",
                    "description": "The weather of a city now, in degrees Celsius.",
                    "parameters": {
                        "type": "object",
                        "properties": {"city": {"type": "string", "description": "Name of the city"}},
                        "required": ["city"],
                    },
                },
            }
        ],
        "temperature": 0.7,
        "max_tokens": 60,
    }
    if workload.stream:
        body["stream"] = True
    if workload.pace_ms:
        body["seed"] = workload.pace_ms
    if workload.large:
        body |= {"logprobs": True, "return_token_ids": True}
    return json.dumps(body, separators=(",", ":")).encode()


class LoadGenerator:
    """Measures windows; keeps the counters of answered requests per target and window in ``folder``."""

    def __init__(self, *, folder: Path, stamps: Path, mock_pid: int) -> None:
        self._folder = folder
        self._stamps = stamps
        self._mock_pid = mock_pid
        self._errors = folder / "load.log"
        self._windows = 0

    def measure(self, target: Target, workload: Workload, *, tries: int = TRIES) -> Window:
        """One quiet window, or the quietest of several noisy ones, which says so."""
        best: Window | None = None
        for attempt in range(1, tries + 1):
            if tries > 1:
                self._wait_until_quiet()
            window = self.once(target, workload)
            window.tries = attempt
            window.quiet = window.noise <= NOISE
            if best is None or window.noise < best.noise:
                best = replace(window)
            if window.quiet:
                break
        assert best is not None
        return best

    def once(self, target: Target, workload: Workload) -> Window:
        """One window, whatever else runs."""
        process, counters = self._start(target, workload)
        assert process.stdout is not None
        self._expect(process, "start")
        began = self._sample(target, process.pid)
        self._expect(process, "stop")
        ended = self._sample(target, process.pid)
        detail = json.loads(process.stdout.read())
        detail["complaint"] = self._errors.read_text()
        detail["stream"] = workload.stream
        process.wait()
        wall, cpu, core, load_core, harness = (after - before for before, after in zip(began, ended, strict=True))
        seconds, requests, events = detail["seconds"], detail["requests"], detail["events"]
        return Window(
            target=target.name,
            workload=workload.name,
            requests_per_second=requests / seconds,
            events_per_second=events / seconds,
            cpu_us_per_request=1e6 * cpu / max(1, requests),
            cpu_us_per_event=1e6 * cpu / max(1, events),
            cpu_share=cpu / wall,
            foreign_share=max(0.0, core - cpu) / wall,
            load_core_share=load_core / wall,
            load_core_foreign_share=max(0.0, load_core - harness) / wall,
            detail=detail,
            counters=counters,
        )

    def hold(self, target: Target, workload: Workload) -> subprocess.Popen[str]:
        """Open the connections and leave them to themselves until the process is killed."""
        process, _ = self._start(target, workload)
        self._expect(process, "start")
        return process

    def _start(self, target: Target, workload: Workload) -> tuple[subprocess.Popen[str], Path]:
        self._windows += 1
        body = self._folder / "request.json"
        body.write_bytes(request_body(workload, target.model))
        counters = self._folder / f"counters-{self._windows}"
        options: dict[str, object] = {
            "port": target.port,
            "key": target.key,
            "body": body,
            "connections": workload.connections,
            "stream": int(workload.stream),
            "exact": int(target.exact and not workload.large),
            "seconds": workload.seconds,
            "warmup": workload.warmup,
            "requests": workload.requests,
            "stagger": 0.31 if workload.pace_ms else 0,
            "stamps": self._stamps,
            "counters": counters,
            "drain": workload.drain,
        }
        command = [str(BUILD / "load"), *(f"{name}={value}" for name, value in options.items())]
        with self._errors.open("w") as errors:
            return (
                subprocess.Popen(pinned(LOAD_CORE, command), stdout=subprocess.PIPE, stderr=errors, text=True),
                counters,
            )

    def _expect(self, process: subprocess.Popen[str], line: str) -> None:
        assert process.stdout is not None
        found = process.stdout.readline().strip()
        if found != line:
            process.kill()
            raise RuntimeError(f"the load generator said {found!r} instead of {line!r}: {self._errors.read_text()}")

    def _sample(self, target: Target, load_pid: int) -> tuple[float, ...]:
        return (
            time.monotonic(),
            tree_cpu_seconds(target.pid) if target.pid else 0.0,
            core_busy_seconds(GATEWAY_CORE),
            core_busy_seconds(LOAD_CORE),
            process_cpu_seconds(self._mock_pid) + process_cpu_seconds(load_pid),
        )

    @staticmethod
    def _wait_until_quiet() -> None:
        until = time.monotonic() + _LONGEST_WAIT_SECONDS
        while time.monotonic() < until:
            before = core_busy_seconds(GATEWAY_CORE), core_busy_seconds(LOAD_CORE)
            time.sleep(_QUIET_SECONDS)
            after = core_busy_seconds(GATEWAY_CORE), core_busy_seconds(LOAD_CORE)
            shares = [(end - start) / _QUIET_SECONDS for start, end in zip(before, after, strict=True)]
            if max(shares) <= NOISE:
                return
