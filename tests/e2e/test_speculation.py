"""Speculation on a real vLLM: a fast replica answers as the standard one, and its draft tokens are told."""

import asyncio

import pytest

from hone.opened_store import opened_store
from serving.engines.vllm import VllmEngine
from serving.speculation.sameness import SamenessRule, Side, Subject, compare
from tests.e2e.conftest import Stack

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]

_SAID = "one two three one two three one two three one two three"
REPEATS = [{"role": "user", "content": f"Say exactly this again: {_SAID}"}]
"""The Base does so, and repeats itself, which looking up in the text so far foresees."""
PROMPTS = [tuple(range(10, 30)), tuple(range(40, 50)) * 2]


async def test_a_fast_replica_answers_as_the_standard_one(stack: Stack):
    """Greedy answers, log-probs and sampled answers of both engines pass a comparison."""
    engines = {variant: VllmEngine(url) for variant, url in stack.engines.items()}
    sides = {variant: Side(variant, engine, stack.base) for variant, engine in engines.items()}
    check = await compare(
        sides["standard"],
        sides["fast"],
        PROMPTS,
        subject=Subject(stack.base, stack.base, 0),
        rule=SamenessRule(tokens=16, samples=2),
    )
    await asyncio.gather(*(engine.close() for engine in engines.values()))
    assert check.same, check.reason
    assert check.tokens > 0 and check.logprob_error is not None and check.logprob_error < 1e-3


async def test_draft_tokens_of_a_turn_are_recorded_and_reported(stack: Stack):
    """A fast answer's Turn holds the engine's counts, streamed or whole, and the report adds them up."""
    turns = []
    async with stack.client() as client:
        for stream in (False, True):
            raw = await client.chat.completions.with_raw_response.create(
                model=f"{stack.base}-fast", messages=REPEATS, max_tokens=24, temperature=0, stream=stream
            )
            if stream:
                async for _ in raw.parse():
                    pass
            else:
                assert raw.parse().model_extra["metrics"] is None
            assert raw.headers["x-hone-variant"] == "fast"
            turns.append(raw.headers["x-hone-turn-id"])
    async with asyncio.timeout(30), opened_store(stack.config) as store:
        for turn_id in turns:
            while True:
                async with store.reading() as work:
                    if await work.turns.existing([turn_id]):
                        counts = (await work.turns.get(turn_id)).speculation
                        break
                await asyncio.sleep(0.05)
            assert 0 < counts.accepted <= counts.drafted and counts.steps > 0
            assert sum(counts.accepted_at) == counts.accepted
    with stack.admin() as admin:
        rows = admin.get("/speculation")["rows"]
    row = next(one for one in rows if (one["policy"], one["version"]) == (stack.base, 0))
    assert row["acceptance"] > 0 and row["tokens_per_step"] > 1 and row["fast_turns"] >= 2
