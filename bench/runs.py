"""What the benchmarks on real engines do alike: make versions, read Turns back, print and write results."""

import argparse
import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from bench.checks import met
from bench.report import DOCUMENT, RESULTS, ROOT, write_results, write_section
from bench.stack import Stack
from bench.streams import Answer
from core.turn import Turn

_RECORDER_SECONDS = 60.0


def say(line: str) -> None:
    """One line of progress."""
    print(line, flush=True)


async def run_module(name: str, *arguments: str) -> None:
    """Run a module in a process of its own; RuntimeError with what it said when it fails."""
    command = [sys.executable, "-m", name, *arguments]
    # Threads that spin at a barrier would take the processors from each other.
    environment = os.environ | {"OMP_WAIT_POLICY": "PASSIVE"}
    done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, cwd=ROOT, env=environment)
    if done.returncode != 0:
        raise RuntimeError(f"{name} failed: {done.stderr[-2000:]}")


async def stored_turns(stack: Stack, answers: Iterable[Answer]) -> dict[str, Turn]:
    """The Turns of all whole answers, once the recorder has written them; those that never come are left out."""
    ids = {answer.turn_id for answer in answers if answer.error is None}
    turns: dict[str, Turn] = {}
    deadline = time.monotonic() + _RECORDER_SECONDS
    while (missing := ids - turns.keys()) and time.monotonic() < deadline:
        await asyncio.sleep(1.0)
        async with stack.store.reading() as work:
            for turn_id in await work.turns.existing(missing):
                turns[turn_id] = await work.turns.get(turn_id)
    return turns


def parser(description: str | None) -> argparse.ArgumentParser:
    """The options that all have."""
    found = argparse.ArgumentParser(description=description)
    found.add_argument("--quick", action="store_true", help="try every part shortly; write nothing")
    found.add_argument("--output", type=Path, help="write the results there, and no document")
    found.add_argument("--folder", type=Path, help="keep everything there; default: a temporary folder")
    return found


def finish(
    found: Mapping[str, Any], arguments: argparse.Namespace, *, name: str, section: Callable[[dict[str, Any]], str]
) -> None:
    """Print, write; exit 1 when a check misses its target (not in a quick run)."""
    for title, rows in found["tables"].items():
        for row in rows:
            say(f"{title}: {row}")
    for check in found["checks"]:
        say(f"{'ok  ' if met(check) else 'MISS'} {check['name']} {check['value']} {check['target']}")
    if arguments.output is not None:
        write_results(arguments.output, found)
    elif not arguments.quick:
        write_results(RESULTS / f"{name.removeprefix('bench-')}.json", found)
        write_section(DOCUMENT, name, section(dict(found)))
    if not arguments.quick and not all(met(check) for check in found["checks"]):
        sys.exit(1)
