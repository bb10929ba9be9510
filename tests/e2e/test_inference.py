"""Chat and completions on a real vLLM through the gateway: what is recorded is what the engine reports."""

import asyncio

import pytest
from openai import AsyncOpenAI

from core.policy import PolicyVersion
from hone.opened_store import opened_store
from serving.engines.vllm import VllmEngine
from tests.e2e.conftest import POLICY, Stack

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]

QUESTION = [{"role": "user", "content": "Name three colours."}]


async def recorded(stack: Stack, turn_id: str):
    """The Turn as the store has it, once the recorder has written it."""
    async with asyncio.timeout(20), opened_store(stack.config) as store:
        while True:
            async with store.reading() as tx:
                if await tx.turns.existing([turn_id]):
                    return await tx.turns.get(turn_id)
            await asyncio.sleep(0.05)


async def test_a_recorded_turn_has_the_ids_that_the_engine_reports(stack: Stack):
    """Prompt ids, output ids and log-probs of the Turn equal those of the engine's own greedy answer."""
    async with stack.client() as client:
        raw = await client.chat.completions.with_raw_response.create(
            model=stack.base, messages=QUESTION, max_tokens=12, temperature=0
        )
    answer = raw.parse()
    assert not (answer.model_extra or {}).get("prompt_token_ids")
    assert answer.choices[0].logprobs is None
    turn = await recorded(stack, raw.headers["x-hone-turn-id"])
    async with _direct(stack, "standard") as client:
        direct = await client.chat.completions.create(
            model=stack.base,
            messages=QUESTION,
            max_tokens=12,
            temperature=0,
            logprobs=True,
            extra_body={"return_token_ids": True},
        )
    assert list(turn.prompt_ids) == direct.model_extra["prompt_token_ids"]
    assert list(turn.output_ids) == direct.choices[0].model_extra["token_ids"]
    expected = [item.logprob for item in direct.choices[0].logprobs.content]
    assert list(turn.output_logprobs) == pytest.approx(expected, abs=1e-3)
    assert turn.response["content"] == answer.choices[0].message.content == direct.choices[0].message.content
    assert turn.exact and turn.trainable


async def test_a_stream_is_captured_token_by_token_and_reads_the_same(stack: Stack):
    """A streamed greedy answer has the text of the plain one, and its Turn the same ids."""
    async with stack.client() as client:
        plain = await client.chat.completions.with_raw_response.create(
            model=stack.base, messages=QUESTION, max_tokens=12, temperature=0
        )
        stream = await client.chat.completions.with_raw_response.create(
            model=stack.base, messages=QUESTION, max_tokens=12, temperature=0, stream=True
        )
        pieces = [chunk async for chunk in stream.parse()]
    text = "".join(chunk.choices[0].delta.content or "" for chunk in pieces if chunk.choices)
    assert text == plain.parse().choices[0].message.content
    assert len(pieces) > 4
    first = await recorded(stack, plain.headers["x-hone-turn-id"])
    second = await recorded(stack, stream.headers["x-hone-turn-id"])
    assert first.output_ids == second.output_ids and first.prompt_ids == second.prompt_ids


async def test_a_seeded_burst_does_not_harm_the_engine(stack: Stack):
    """Many requests with seeds at once are all answered, and the same seed samples the same text."""
    async with stack.client() as client:

        async def ask(seed: int) -> str:
            answer = await client.chat.completions.create(
                model=stack.base, messages=QUESTION, max_tokens=8, temperature=1.0, seed=seed
            )
            return answer.choices[0].message.content

        answers = await asyncio.gather(*(ask(seed % 20) for seed in range(40)))
    assert len(set(answers[:20])) > 5
    same = sum(a == b for a, b in zip(answers[:20], answers[20:], strict=True))
    assert same >= 15


async def test_fast_is_greedy_equal_to_standard(stack: Stack, trained: PolicyVersion):
    """Speculation changes no greedy token but at near-ties (top two within 1e-3 in log-prob)."""
    prompts = [f'How many letters are in "{word}"?' for word in ("garden", "window", "planet", "silver")]
    prompts += ["Count: 1, 2, 3, 4, 5, 6, 7,", "Repeat after me: red green blue red green blue red"]
    async with stack.client() as client:

        async def greedy(model: str, prompt: str):
            return await client.chat.completions.with_raw_response.create(
                model=model,
                messages=[{"role": "user", "content": prompt}],
                max_tokens=32,
                temperature=0,
                logprobs=True,
                top_logprobs=2,
            )

        for prompt in prompts:
            for name in (stack.base, f"{POLICY}@{trained.version}"):
                fast_name = f"{POLICY}-fast@{trained.version}" if "@" in name else f"{name}-fast"
                standard, fast = await greedy(name, prompt), await greedy(fast_name, prompt)
                assert fast.headers["x-hone-variant"] == "fast"
                _assert_same_but_near_ties(standard.parse(), fast.parse())
    acceptance = await _drafted(stack)
    assert acceptance > 0, "the fast engine never drafted: it was not speculating"


def _assert_same_but_near_ties(standard, fast) -> None:
    ours = standard.choices[0].logprobs.content
    theirs = fast.choices[0].logprobs.content
    for index, (a, b) in enumerate(zip(ours, theirs, strict=False)):
        if a.token != b.token:
            first, second = a.top_logprobs[0].logprob, a.top_logprobs[1].logprob
            assert first - second < 1e-3, f"token {index} differs: {a.token!r} and {b.token!r}"
            return
    assert len(ours) == len(theirs)


async def _drafted(stack: Stack) -> float:
    engine = VllmEngine(stack.engines["fast"])
    try:
        metrics = await engine.metrics()
    finally:
        await engine.close()
    return metrics.draft_tokens


def _direct(stack: Stack, variant: str):
    return AsyncOpenAI(base_url=f"{stack.engines[variant]}/v1", api_key="none", max_retries=0)


async def test_base_and_adapter_in_one_batch_do_not_mix(stack: Stack, trained: PolicyVersion):
    """Requests for the Base and for an adapter that share a batch get what each gets alone."""
    async with stack.client() as client:

        async def greedy(model: str) -> str:
            answer = await client.chat.completions.create(
                model=model, messages=QUESTION, max_tokens=16, temperature=0
            )
            return answer.choices[0].message.content

        names = [stack.base, f"{POLICY}@{trained.version}"]
        alone = {name: await greedy(name) for name in names}
        mixed = await asyncio.gather(*(greedy(names[index % 2]) for index in range(12)))
    assert alone[names[0]] != alone[names[1]]
    assert list(mixed) == [alone[names[index % 2]] for index in range(12)]
