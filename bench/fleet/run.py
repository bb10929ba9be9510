"""Runs the benchmark of a fleet with three replicas: ``python -m bench.fleet.run [--quick]``.

See docs/benchmarks.md.
"""

import asyncio
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from bench.engine_records import compare, read_records
from bench.fleet import plan, report, results
from bench.fleet.fault import kill_one
from bench.fleet.results import Arm, Findings, Spread
from bench.hotswap.make import MANIFEST
from bench.hotswap.swaps import Made, Swapper, read_made
from bench.machine import describe, hone_version
from bench.runs import finish, parser, run_module, say, stored_turns
from bench.stack import RECORDED, Stack
from bench.streams import Answer, Clients, Conversations
from bench.texts import CONTEXT, OPENINGS
from core.deployment import Deployment, DeploymentStatus
from core.policy import Base
from core.turn import Turn
from core.variant import Variant
from serving.engines.vllm import VllmEngine
from serving.weights.base_model import prepare_base

_STANDARD, _FAST = plan.POLICY, f"{plan.POLICY}-fast"


class Bench:
    """One run. ``findings`` grows while it goes on."""

    def __init__(self, *, chosen: plan.Plan, folder: Path) -> None:
        self.findings = Findings()
        self.engine = ""
        self._plan = chosen
        self._folder = folder
        self._answers: list[Answer] = []
        self._names: dict[str, str] = {}
        """Deployment → Variant and number."""

    async def run(self) -> None:
        """Everything, in order."""
        overrides: dict[str, Any] = {
            "fleet.variants": tuple(plan.REPLICAS),
            "fleet.replicas": plan.REPLICAS,
            "fleet.fast_method": "ngram",
            "engine.max_model_len": 1024,
            "engine.max_num_seqs": 16,
            "engine.kv_cache_gib": 1,
            "engine.extra_args": RECORDED,
        }
        stack = Stack(self._folder / "fleet", overrides, replicas=sum(plan.REPLICAS.values()))
        base = await asyncio.to_thread(prepare_base, stack.config, say)
        made = await self._make(Path(base.path))
        say("starting gateway, fleet and three engines")
        async with stack:
            await self._measure(stack, base, made)
            turns = await stored_turns(stack, self._answers)
        self._count(turns)
        self.findings.comparison = compare(self._answers, read_records(stack.records), turns)
        for line in self.findings.comparison.examples[:5]:
            say(line)

    async def _make(self, base: Path) -> list[Made]:
        folder = self._folder / "versions"
        await run_module("bench.hotswap.make", "lora", str(folder), str(base), "2")
        return await asyncio.to_thread(read_made, folder / MANIFEST)

    async def _measure(self, stack: Stack, base: Base, made: Sequence[Made]) -> None:
        deployments = await stack.deployments()
        ready = [one for one in deployments if one.status is DeploymentStatus.READY]
        self.findings.replicas = len(ready)
        self.engine = str(ready[0].engine_version)
        self._names = {one.id: f"{one.variant} {one.replica}" for one in deployments}
        await stack.create_policy(plan.POLICY)
        await self._first_version(stack, base, made[0])
        for number in range(self._plan.rounds):
            for sticky in (False, True) if number % 2 == 0 else (True, False):
                await stack.restart_gateway(sticky_episodes=sticky)
                await self._arm(stack, sticky=sticky)
        if not stack.config.gateway.sticky_episodes:
            await stack.restart_gateway(sticky_episodes=True)
        await self._fault(stack, base, made)

    async def _first_version(self, stack: Stack, base: Base, made: Made) -> None:
        said = self._said(_STANDARD, "first")
        async with Clients(url=stack.url, key=stack.key, said=said, count=2) as clients:
            swapper = Swapper(stack=stack, policy=plan.POLICY, kind="lora", base=base, clients=clients)
            swap = await swapper.swap(made)
        if swap.error is not None:
            raise RuntimeError(f"the first version was not served: {swap.error}\n{stack.logs()}")

    async def _arm(self, stack: Stack, *, sticky: bool) -> None:
        async with AsyncExitStack() as opened:
            groups = [await opened.enter_async_context(one) for one in self._clients(stack)]
            await asyncio.sleep(plan.SETTLE_SECONDS)
            began, before = time.monotonic(), await _prefix(await stack.deployments())
            await asyncio.sleep(self._plan.seconds)
            ended, after = time.monotonic(), await _prefix(await stack.deployments())
        answers = [one for group in groups for one in group.answers]
        self._answers += answers
        counted = [one for one in answers if began <= one.started < ended]
        queries, hits = (late - early for early, late in zip(before, after, strict=True))
        arm = Arm(sticky=sticky, seconds=ended - began, answers=counted, queries=queries, hits=hits)
        self.findings.arms.append(arm)
        rate = hits / queries if queries else 0.0
        say(f"{'sticky' if sticky else 'least loaded'}: {len(counted)} requests, prefix hit rate {rate:.2f}")

    async def _fault(self, stack: Stack, base: Base, made: Sequence[Made]) -> None:
        async with AsyncExitStack() as opened:
            groups = [await opened.enter_async_context(one) for one in self._clients(stack)]
            whole = Clients(
                url=stack.url,
                key=stack.key,
                said=self._said(_STANDARD, "whole", stream=False),
                count=plan.WHOLE_CLIENTS,
                seed=3,
            )
            groups.append(await opened.enter_async_context(whole))
            swapper = Swapper(stack=stack, policy=plan.POLICY, kind="lora", base=base, clients=groups[0])
            await asyncio.sleep(self._plan.before_seconds)
            say("killing one standard replica while a version is swapped in")
            fault = await kill_one(stack, swapper, made[1], back_seconds=self._plan.back_seconds)
            await asyncio.sleep(self._plan.after_seconds)
        fault.answers = [one for group in groups for one in group.answers]
        self._answers += fault.answers
        self.findings.fault = fault
        for answer in [*fault.failed[:5], *fault.cut[:3]]:
            say(f"{answer.started - fault.killed:+.2f} s, begun: {answer.begun}: {answer.error}")

    def _clients(self, stack: Stack) -> list[Clients]:
        return [
            Clients(url=stack.url, key=stack.key, said=self._said(name, name), count=count, seed=seed)
            for seed, (name, count) in enumerate(
                ((_STANDARD, plan.STANDARD_CLIENTS), (_FAST, plan.FAST_CLIENTS)), start=1
            )
        ]

    @staticmethod
    def _said(model: str, who: str, *, stream: bool = True) -> Conversations:
        return Conversations(
            model=model,
            openings=[f"{CONTEXT}You are asked by a visitor ({who}): {text}" for text in OPENINGS],
            turns=plan.TURNS,
            max_tokens=plan.MAX_TOKENS,
            stream=stream,
        )

    def _count(self, turns: dict[str, Turn]) -> None:
        """Which replica answered what."""
        for arm in self.findings.arms:
            arm.spread = self._spread(arm.answers, turns)
        fault = self.findings.fault
        if fault is not None and fault.back is not None:
            back = fault.back
            self.findings.spread_after = self._spread(
                (answer for answer in fault.answers if answer.started > back), turns
            )

    def _spread(self, answers: Iterable[Answer], turns: dict[str, Turn]) -> Spread:
        counted = Counter(
            self._names.get(turns[answer.turn_id].deployment_id, "unknown")
            for answer in answers
            if answer.turn_id in turns
        )
        # A replica that answered nothing must show.
        return {name: counted[name] for name in sorted({*self._names.values(), *counted})}


async def _prefix(deployments: Sequence[Deployment]) -> tuple[float, float]:
    """Prompt tokens looked up and found, of all standard replicas: between others there is no choice."""
    queries = hits = 0.0
    for one in deployments:
        if one.variant is Variant.STANDARD and one.status is DeploymentStatus.READY:
            engine = VllmEngine(one.url)
            try:
                counters = await engine.metrics()
            finally:
                await engine.close()
            queries, hits = queries + counters.prefix_queries, hits + counters.prefix_hits
    return queries, hits


def collect(bench: Bench, chosen: plan.Plan) -> dict[str, Any]:
    """The results file."""
    return {
        "checks": results.checks(bench.findings),
        "tables": results.tables(bench.findings),
        "settings": {
            "standard": plan.STANDARD_CLIENTS,
            "fast": plan.FAST_CLIENTS,
            "whole": plan.WHOLE_CLIENTS,
            "turns": plan.TURNS,
            "rounds": chosen.rounds,
            "seconds": chosen.seconds,
            "base": "SmolLM2-135M-Instruct",
            "quick": chosen.quick,
        },
        "machine": describe(),
        "versions": {"hone": hone_version(), "vllm": bench.engine},
    }


def main() -> None:
    """Measure, print, write."""
    arguments = parser(__doc__).parse_args()
    chosen = plan.QUICK if arguments.quick else plan.FULL
    with tempfile.TemporaryDirectory(prefix="hone-bench-") as temporary:
        bench = Bench(chosen=chosen, folder=arguments.folder or Path(temporary))
        asyncio.run(bench.run())
        found = collect(bench, chosen)
    finish(found, arguments, name=report.NAME, section=report.section)


if __name__ == "__main__":
    main()
