"""Runs the hot-swap benchmark: ``python -m bench.hotswap.run [--quick]``. See docs/benchmarks.md."""

import asyncio
import json
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench.engine_records import compare, read_records
from bench.hotswap import plan, report, results
from bench.hotswap.make import MANIFEST
from bench.hotswap.rescore import Scored
from bench.hotswap.results import Block, Findings, Phase
from bench.hotswap.swaps import Kind, Made, Swapper, read_made
from bench.machine import describe, hone_version
from bench.runs import finish, parser, run_module, say, stored_turns
from bench.stack import RECORDED, Stack
from bench.streams import Clients, Conversations
from bench.texts import OPENINGS
from core.policy import Base
from core.turn import Turn
from serving.weights.base_model import prepare_base


class Bench:
    """One run. ``findings`` grows while it goes on."""

    def __init__(self, *, chosen: plan.Plan, folder: Path) -> None:
        self.findings = Findings()
        self.engine = ""
        self._plan = chosen
        self._folder = folder

    async def phase(self, kind: Kind) -> None:
        """All swaps of one kind on a stack of its own."""
        lora = kind == "lora"
        overrides: dict[str, Any] = {
            "fleet.variants": ("standard",),
            "engine.extra_args": RECORDED,
            "engine.max_num_seqs": 2 * plan.STREAMS,
        }
        if not lora:
            overrides["fleet.full_weights_policy"] = plan.POLICY
        stack = Stack(self._folder / kind, overrides)
        base = await asyncio.to_thread(prepare_base, stack.config, say)
        made = await self._make(kind, Path(base.path))
        found = Phase(kind)
        self.findings.phases.append(found)
        say(f"{kind}: starting gateway, fleet and engine")
        async with stack:
            self.engine = next((str(one.engine_version) for one in await stack.deployments()), "")
            await stack.create_policy(plan.POLICY)
            await self._swaps(stack, base, made, found)
            turns = await stored_turns(stack, found.answers)
        records = read_records(stack.records)
        found.comparison = compare(found.answers, records, turns, lora=lora)
        found.versions_seen = len({answer.version for answer in found.answers if answer.error is None})
        found.straddling = sum(len(turn.policy_spans) > 1 for turn in turns.values())
        say(f"{kind}: scoring Turns anew")
        found.scored = await self._score(kind, Path(base.path), made, found, list(turns.values()))
        for line in [*found.comparison.examples[:5], *(str(answer.error) for answer in found.failed[:5])]:
            say(f"{kind}: {line}")

    async def _make(self, kind: Kind, base: Path) -> list[Made]:
        count = (self._plan.lora_swaps if kind == "lora" else self._plan.full_swaps) + 1
        folder = self._folder / f"versions-{kind}"
        say(f"{kind}: making {count} versions")
        await run_module("bench.hotswap.make", kind, str(folder), str(base), str(count))
        return await asyncio.to_thread(read_made, folder / MANIFEST)

    async def _swaps(self, stack: Stack, base: Base, made: Sequence[Made], found: Phase) -> None:
        """The first version is there before anything counts; then the blocks."""
        chosen = self._plan
        lora = found.kind == "lora"
        blocks, every = (chosen.lora_blocks, chosen.lora_every) if lora else (chosen.full_blocks, chosen.full_every)
        said = Conversations(model=plan.POLICY, openings=OPENINGS, turns=2, max_tokens=plan.MAX_TOKENS)
        async with Clients(url=stack.url, key=stack.key, said=said, count=plan.STREAMS) as clients:
            found.answers = clients.answers
            swapper = Swapper(stack=stack, policy=plan.POLICY, kind=found.kind, base=base, clients=clients)
            _report(found, await swapper.swap(made[0]))
            await asyncio.sleep(plan.SETTLE_SECONDS)
            shares = results.shares(made[1:], blocks)
            for number, share in enumerate(shares):
                # Now this order, now the other, so that neither sort of block always comes second.
                for swaps in (True, False) if number % 2 == 0 else (False, True):
                    begin = time.monotonic()
                    if swaps:
                        await self._block(swapper, share, every, found)
                    else:
                        await asyncio.sleep(_length(found, every * len(share)))
                    found.blocks.append(Block(swaps=swaps, begin=begin, end=time.monotonic()))
                    await asyncio.sleep(plan.SETTLE_SECONDS)
            # The first one was no part of a block.
            found.swaps = swapper.swaps[1:]

    async def _block(self, swapper: Swapper, share: Sequence[Made], every: float, found: Phase) -> None:
        for one in share:
            due = time.monotonic() + every
            _report(found, await swapper.swap(one))
            await asyncio.sleep(max(0.0, due - time.monotonic()))

    async def _score(
        self, kind: Kind, base: Path, made: Sequence[Made], found: Phase, turns: Sequence[Turn]
    ) -> list[Scored]:
        sample = results.pieces(
            turns,
            per_version=self._plan.lora_scored if kind == "lora" else self._plan.full_scored,
            straddling=self._plan.scored_straddling,
        )
        folders = {0: ""} | {number: str(one.path) for number, one in enumerate(made, start=1)}
        asked, scored = self._folder / f"pieces-{kind}.json", self._folder / f"scored-{kind}.json"
        asked.write_text(json.dumps({"folders": folders, "pieces": [asdict(one) for one in sample]}))
        await run_module("bench.hotswap.rescore", str(base), str(asked), str(scored))
        return [Scored(**one) for one in json.loads(scored.read_text())]


def collect(bench: Bench, chosen: plan.Plan) -> dict[str, Any]:
    """The results file."""
    return {
        "checks": results.checks(bench.findings),
        "tables": results.tables(bench.findings),
        "settings": {
            "streams": plan.STREAMS,
            "max_tokens": plan.MAX_TOKENS,
            "settle": plan.SETTLE_SECONDS,
            "lora_every": chosen.lora_every,
            "full_every": chosen.full_every,
            "base": "SmolLM2-135M-Instruct",
            "quick": chosen.quick,
        },
        "machine": describe(),
        "versions": {"hone": hone_version(), "vllm": bench.engine},
    }


def _length(found: Phase, otherwise: float) -> float:
    """As long as the block with swaps that was last."""
    return next((block.seconds for block in reversed(found.blocks) if block.swaps), otherwise)


def _report(found: Phase, swap: Any) -> None:
    seconds = swap.to_first_token
    outcome = swap.error or f"first token {seconds:.2f} s after it was published"
    say(f"{found.kind}: {plan.POLICY}@{swap.version} {outcome}; {len(found.failed)} requests failed so far")


async def _run(chosen: plan.Plan, folder: Path, kinds: Sequence[Kind]) -> dict[str, Any]:
    bench = Bench(chosen=chosen, folder=folder)
    for kind in kinds:
        await bench.phase(kind)
    return collect(bench, chosen)


def main() -> None:
    """Measure, print, write."""
    options = parser(__doc__)
    options.add_argument("--kinds", default="lora,full", help="comma-separated; default: both")
    arguments = options.parse_args()
    chosen = plan.QUICK if arguments.quick else plan.FULL
    kinds: list[Kind] = [kind for kind in ("lora", "full") if kind in arguments.kinds.split(",")]
    with tempfile.TemporaryDirectory(prefix="hone-bench-") as temporary:
        found = asyncio.run(_run(chosen, arguments.folder or Path(temporary), kinds))
    finish(found, arguments, name=report.NAME, section=report.section)


if __name__ == "__main__":
    main()
