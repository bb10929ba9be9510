"""Compares gradients of all layouts: ``python -m bench.parity.run [--quick]``. See docs/benchmarks.md."""

import argparse
import dataclasses
import json
import multiprocessing
import sys
import tempfile
import time
from collections.abc import Sequence
from importlib import metadata
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError

from bench.checks import met
from bench.machine import describe, hone_version
from bench.parity import plan, report
from bench.parity.rank import run_rank
from bench.parity.reference import plain_gradients
from bench.parity.results import checks, ratio_of, relative_error
from bench.report import DOCUMENT, RESULTS, write_results, write_section
from bench.runs import say

RESULTS_FILE = RESULTS / "parity.json"
_LIMIT_SECONDS = 180.0


class Parity:
    """The model, the right gradients, and one set of processes after the other."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._base = plan.build_base(folder / "base")
        self._adapter = plan.build_adapter(self._base, folder / "adapter")
        self._expected: dict[tuple[str, str], tuple[float, dict[str, torch.Tensor]]] = {}
        # A fresh process for every rank, which need not import everything again.
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(["bench.parity.rank"])

    def measure(self, layout: plan.Layout, *, main: bool) -> dict[str, Any]:
        """One row of the table."""
        row: dict[str, Any] = dataclasses.asdict(layout) | {"main": main, "refused": None}
        row |= dict.fromkeys(("error", "length", "loss_error", "seconds"))
        try:
            layout.section()
        except ValidationError as error:
            return row | {"refused": str(error.errors()[0]["ctx"]["error"])}
        with tempfile.TemporaryDirectory(dir=self._folder) as name:
            self._spawn(layout, Path(name))
            found = json.loads((Path(name) / "result.json").read_text())
            gradients = torch.load(Path(name) / "gradients.pt", weights_only=True)
        loss, expected = self._right(layout)
        return row | {
            "error": relative_error(gradients, expected),
            "length": ratio_of(gradients, expected),
            "loss_error": abs(found["loss"] - loss),
            "seconds": found["seconds"],
        }

    def _right(self, layout: plan.Layout) -> tuple[float, dict[str, torch.Tensor]]:
        key = (layout.train, layout.objective)
        if key not in self._expected:
            adapter = self._adapter if layout.train == "lora" else None
            samples = plan.build_samples()
            self._expected[key] = plain_gradients(self._base, adapter, samples, objective=layout.objective)
        return self._expected[key]

    def _spawn(self, layout: plan.Layout, folder: Path) -> None:
        ranks: list[BaseProcess] = [
            self._context.Process(target=run_rank, args=(rank, layout, folder, self._base, self._adapter))
            for rank in range(layout.ranks)
        ]
        for process in ranks:
            process.start()
        deadline = time.monotonic() + _LIMIT_SECONDS
        try:
            for process in ranks:
                process.join(max(0.0, deadline - time.monotonic()))
            if any(process.exitcode != 0 for process in ranks):
                raise RuntimeError(f"{layout.name}: ranks ended with {[process.exitcode for process in ranks]}")
        finally:
            for process in ranks:
                process.kill()


def run(layouts: Sequence[tuple[plan.Layout, bool]]) -> list[dict[str, Any]]:
    """A row for each layout, in order."""
    rows = []
    with tempfile.TemporaryDirectory(prefix="hone-parity-") as name:
        parity = Parity(Path(name))
        for layout, main in layouts:
            row = parity.measure(layout, main=main)
            shown = row["refused"] or f"error {row['error']:.2e}  length {row['length']:.6f}  {row['seconds']:.1f} s"
            say(f"{layout.name}: {shown}")
            rows.append(row)
    return rows


def main() -> None:
    """Compare, print, write; exit 1 when a check misses its target (not in a quick run)."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="three layouts; write nothing")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    started = time.monotonic()
    everything = [(layout, True) for layout in plan.MAIN] + [(layout, False) for layout in plan.FURTHER]
    rows = run([(layout, False) for layout in plan.QUICK] if arguments.quick else everything)
    checked = checks(rows)
    found = {
        "checks": checked,
        "tables": {"rows": rows},
        "seconds": time.monotonic() - started,
        "machine": describe(),
        "version": hone_version(),
        "settings": {
            "rate": plan.RATE,
            "torch": metadata.version("torch"),
            "deepspeed": metadata.version("deepspeed"),
        },
    }
    if not arguments.quick:
        for one in checked:
            say(f"{'ok  ' if met(one) else 'MISS'} {one['name']} {one['value']} {one['target']}")
        write_results(RESULTS_FILE, found)
        write_section(DOCUMENT, report.NAME, report.section(found))
        sys.exit(0 if all(met(one) for one in checked) else 1)


if __name__ == "__main__":
    main()
