"""Runs the gateway benchmark: ``python -m bench.gateway.run [--quick]``. See docs/benchmarks.md."""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any

from bench.checks import met
from bench.gateway import native, plan, report, results
from bench.gateway.candidates import PEERS, Server
from bench.gateway.load import LoadGenerator, Target, Window, Workload, request_body
from bench.gateway.machine import GATEWAY_CORE, pinned, tree_pss_mb
from bench.gateway.ours import POLICY, Hone
from bench.gateway.results import Findings
from bench.machine import describe, hone_version
from bench.report import DOCUMENT, RESULTS, ROOT, write_results, write_section
from gateway.capture.frames import frame_parts
from gateway.capture.record import CapturedCall

_GROWTH_STEPS = 10


class Bench:
    """One run. ``findings`` grows while it goes on."""

    def __init__(self, *, chosen: plan.Plan, folder: Path, mock: native.MockEngine, peers: list[str]) -> None:
        self.findings = Findings()
        self._plan = chosen
        self._folder = folder
        self._mock = mock
        self._peers = peers
        self._load = LoadGenerator(folder=folder, stamps=mock.stamps, mock_pid=mock.pid)
        self._samples: list[CapturedCall] = []
        self._complained: set[str] = set()

    def run(self) -> None:
        """Everything, in order."""
        with ExitStack() as stack:
            targets: list[tuple[Target, Server | None]] = [(Target(name="direct", port=self._mock.port, pid=0), None)]
            for name in self._peers:
                say(f"starting {name}")
                server, target = PEERS[name](self._folder, self._mock.port)
                stack.callback(server.stop)
                server.rest()
                targets.append((target, server))
            say("starting hone")
            hone = Hone(self._folder, self._mock.port)
            stack.callback(hone.stop)
            hone.server.rest()
            targets += [(hone.captured, hone.server), (hone.plain, hone.server)]
            self._rounds(targets, hone)
            hone.server.wake()
            self._growth(hone)
            self._idle(targets, hone)
            hone.server.wake()
            self._recording()
            self._through_the_store(hone)

    def _rounds(self, targets: list[tuple[Target, Server | None]], hone: Hone) -> None:
        for number in range(self._plan.rounds):
            # Another order in every round, so that no candidate always follows the same one.
            for target, server in targets[number:] + targets[:number]:
                workloads = self._plan.workloads(target.name, number)
                if not workloads:
                    continue
                if server is not None:
                    server.wake()
                for workload in workloads:
                    self._measure(target, workload, hone)
                if server is not None:
                    server.rest()

    def _measure(self, target: Target, workload: Workload, hone: Hone) -> None:
        window = self._load.measure(target, workload, tries=self._plan.tries)
        self.findings.windows.append(window)
        say(_line(window))
        complaint = window.detail["complaint"]
        if complaint and target.name not in self._complained:
            self._complained.add(target.name)
            say(complaint)
        if target.pid == hone.server.pid:
            self._check_journal(hone, [window])

    def _check_journal(self, hone: Hone, windows: list[Window]) -> None:
        self.findings.turns.add(hone.check_journal(windows, self._samples))

    def _growth(self, hone: Hone) -> None:
        """Memory of the gateway over many requests, after as many as a step has to warm up."""
        step = replace(plan.JSON_BUSY, warmup=0.0, requests=self._plan.growth_requests // _GROWTH_STEPS)
        for number in range(_GROWTH_STEPS + 2):
            self._check_journal(hone, [self._load.once(hone.captured, step)])
            if number > 0:
                self.findings.memory_mb.append(round(tree_pss_mb(hone.server.pid), 2))
        self.findings.growth_requests = self._plan.growth_requests
        say(f"memory {self.findings.memory_mb} MB")

    def _idle(self, targets: list[tuple[Target, Server | None]], hone: Hone) -> None:
        """Memory with many streams that say nothing."""
        chosen = [
            (target, server) for target, server in targets if target.name in ("vllm-router", hone.captured.name)
        ]
        for target, server in chosen:
            if server is not None:
                server.wake()
            before = tree_pss_mb(target.pid)
            process = self._load.hold(target, plan.IDLE_STREAMS)
            during = tree_pss_mb(target.pid)
            process.kill()
            process.wait()
            streams = plan.IDLE_STREAMS.connections
            self.findings.idle[target.name] = {
                "streams": streams,
                "before_mb": round(before, 2),
                "with_mb": round(during, 2),
                "kb_per_stream": round(1000 * (during - before) / streams, 2),
            }
            say(f"idle streams: {target.name} {self.findings.idle[target.name]}")
            if server is not None:
                server.rest()

    def _recording(self) -> None:
        if not self._samples:
            say("recording: nothing was found in the journal")
            return
        samples = self._folder / "samples"
        samples.write_bytes(b"".join(part for call in self._samples for part in frame_parts(call)))
        arguments = [str(samples), str(self._folder / "recording"), str(self._plan.records)]
        command = pinned(GATEWAY_CORE, [sys.executable, "-m", "bench.gateway.recording", *arguments])
        done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT)
        self.findings.recording = json.loads(done.stdout)
        say(f"recording {self.findings.recording}")

    def _through_the_store(self, hone: Hone) -> None:
        """Some answers all the way: journal, recorder, store, and back."""
        self._check_journal(hone, [])
        whole = replace(plan.json_workload(16), warmup=0.0, requests=self._plan.stored_answers)
        streams = replace(plan.stream_workload(16), warmup=0.0, requests=self._plan.stored_streams)
        windows = [self._load.once(hone.captured, whole), self._load.once(hone.captured, streams)]
        added, cost = hone.drain()
        self.findings.drained_turns, self.findings.drain_us_per_turn = added, cost
        self.findings.stored = hone.check_store(windows)
        say(f"store: {added} Turns, {cost:.0f} us each; {self.findings.stored}")


def collect(bench: Bench, chosen: plan.Plan) -> dict[str, Any]:
    """The results file."""
    found = bench.findings
    cores = os.cpu_count() or 1
    return {
        "checks": results.checks(found),
        "tables": {
            "rows": results.rows(found),
            "large_answer": results.ratios_on_large_answer(found),
            "recording": found.recording,
            "drain": {"turns": found.drained_turns, "us_per_turn": round(found.drain_us_per_turn, 1)},
            "memory": {"requests": found.growth_requests, "mb": found.memory_mb},
            "idle_streams": found.idle,
            "two_workers": f"not measured: {cores} cores, one for the gateway and one for engine and load"
            if cores < 4
            else "not measured: this run measures one worker",
            "turns": {
                "journal": found.turns.checked,
                "store": found.stored.checked,
                "lost": found.turns.lost + found.stored.lost,
                "wrong": found.turns.wrong + found.stored.wrong,
                "content_without_consent": found.turns.content_without_consent,
            },
        },
        "sizes": sizes(),
        "machine": describe(),
        "versions": versions(),
        "settings": {"rounds": chosen.rounds, "seconds": chosen.seconds, "quick": chosen.quick},
    }


def sizes() -> dict[str, int]:
    """Bytes of the request and of the mock engine's answers."""
    with tempfile.TemporaryDirectory() as folder, native.MockEngine(Path(folder)) as mock:
        found = {"request": len(request_body(plan.JSON_BUSY, POLICY))}
        for name, workload in (("small", plan.JSON_BUSY), ("large", plan.LARGE)):
            found[name] = len(mock.ask(request_body(workload, "base")))
        return found


def versions() -> dict[str, str]:
    """What was compared."""
    python = ROOT / ".venv-bench" / "bin" / "python"
    names = ["litellm", "vllm-router", "fastapi", "httpx", "uvicorn", "uvloop", "httptools"]
    script = f"import importlib.metadata as m, json; print(json.dumps({{n: m.version(n) for n in {names!r}}}))"
    theirs: dict[str, str] = json.loads(
        subprocess.run([str(python), "-c", script], check=True, capture_output=True).stdout
    )
    nginx = subprocess.run(["/usr/sbin/nginx", "-v"], check=True, capture_output=True, text=True).stderr
    ours = {f"hone's {name}": metadata.version(name) for name in ("uvicorn", "uvloop", "httptools", "msgspec")}
    return {"hone": hone_version()} | ours | theirs | {"nginx": re.sub(r".*/", "", nginx.strip())}


def say(line: str) -> None:
    """One line of progress."""
    print(line, flush=True)


def _line(window: Window) -> str:
    detail = window.detail
    p50 = window.percentile("latency", "p50")
    rate = f"{window.requests_per_second:9.0f} requests/s"
    if detail["first_event_ms"] is not None:
        rate += f" {window.events_per_second:9.0f} events/s"
    noise = "" if window.quiet else "  NOISY"
    trouble = "".join(
        f" {name}={detail[name]}" for name in ("errors", "mismatched", "events_missing") if detail[name]
    )
    return (
        f"{window.target:18} {window.workload:24} {rate}  p50 {p50} ms  core {window.cpu_share:.0%}  "
        f"foreign {window.noise:.0%}{noise}{trouble}"
    )


def main() -> None:
    """Measure, print, write; exit 1 when a check misses its target (not in a quick run)."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="try every part in short windows; write nothing")
    parser.add_argument("--peers", default=",".join(PEERS), help="comma-separated; default: all")
    parser.add_argument("--output", type=Path, help="write the results there, and no document")
    arguments = parser.parse_args()
    chosen = plan.QUICK if arguments.quick else plan.FULL
    native.build()
    peers = [name for name in arguments.peers.split(",") if name]
    with tempfile.TemporaryDirectory(prefix="hone-bench-") as folder, native.MockEngine(Path(folder)) as mock:
        bench = Bench(chosen=chosen, folder=Path(folder), mock=mock, peers=peers)
        bench.run()
        found = collect(bench, chosen)
    for line in report.further(found):
        say(line)
    for check in found["checks"]:
        say(f"{'ok  ' if met(check) else 'MISS'} {check['name']} {check['value']} {check['target']}")
    if arguments.output is not None:
        write_results(arguments.output, found)
    elif not chosen.quick:
        write_results(RESULTS / "gateway.json", found)
        write_section(DOCUMENT, report.NAME, report.section(found))
    if not chosen.quick and not all(met(check) for check in found["checks"]):
        sys.exit(1)


if __name__ == "__main__":
    main()
