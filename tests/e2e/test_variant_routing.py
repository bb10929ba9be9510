"""Variants, refused fields, context length and the prefix cache on a real vLLM."""

import asyncio
from typing import Any

import httpx
import openai
import pytest

from hone.local_keys import read_local_keys
from tests.e2e.conftest import Stack

pytestmark = [pytest.mark.engine, pytest.mark.timeout(900)]

LONG = "The sea is wide and deep, and its waves come and go. " * 12


async def ask(stack: Stack, model: str, messages: Any = None, **body: Any) -> tuple[Any, dict[str, str]]:
    """An answer, and its ``x-hone-`` headers."""
    asked = {"max_tokens": 12, "seed": 1, "extra_body": body.pop("extra", {}), **body}
    async with stack.client() as client:
        raw = await client.chat.completions.with_raw_response.create(
            model=model, messages=messages or [{"role": "user", "content": "Say: one two three."}], **asked
        )
    said = {name.removeprefix("x-hone-"): value for name, value in raw.headers.items() if name.startswith("x-hone-")}
    return raw.parse(), said


async def test_fields_that_speculation_refuses_are_answered_by_standard(stack: Stack):
    """``-fast`` and ``-auto`` keep their meaning with fields that vLLM refuses while it speculates."""
    for extra in ({"min_p": 0.1}, {"logit_bias": {"5": 1.0}}):
        (field,) = extra
        for suffix in ("-fast", "-auto"):
            _, said = await ask(stack, f"{stack.base}{suffix}", extra=extra)
            assert said["variant"] == "standard"
            # Other tests of the stack may have left speculation at a bad time.
            assert said["variant-reason"] in {f"unsupported_field; {field}", "speculation_off", "low_acceptance"}
        with pytest.raises(openai.BadRequestError):
            # The table says what the engine itself says.
            async with openai.AsyncOpenAI(
                base_url=f"{stack.engines['fast']}/v1", api_key="-", max_retries=0
            ) as direct:
                await direct.chat.completions.create(
                    model=stack.base, messages=[{"role": "user", "content": "x"}], max_tokens=2, extra_body=extra
                )


async def test_too_long_a_prompt_has_openais_code_wherever_it_is_counted(stack: Stack):
    """What the engine counts and what the gateway knows beforehand are told alike."""
    room = stack.config.engine.max_model_len
    asked = [
        ({"max_tokens": room + 1}, [{"role": "user", "content": "x"}], "max_tokens"),
        ({"max_tokens": 2}, [{"role": "user", "content": "word " * room}], "messages"),
        ({"max_tokens": room - 2}, [{"role": "user", "content": "word " * 100}], "messages"),
    ]
    for body, messages, param in asked:
        with pytest.raises(openai.BadRequestError) as raised:
            await ask(stack, stack.base, messages, **body)
        assert (raised.value.code, raised.value.param) == ("context_length_exceeded", param)


async def test_the_prefix_cache_is_measured_per_episode(stack: Stack):
    """The second Turn of a long conversation finds most of its prompt, and Episode and metrics say how much."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": LONG}]
    answer, said = await ask(stack, stack.base, messages)
    messages += [
        {"role": "assistant", "content": answer.choices[0].message.content},
        {"role": "user", "content": "Go on."},
    ]
    again, _ = await ask(stack, stack.base, messages, extra_headers={"x-hone-episode-id": said["episode-id"]})
    cached = again.usage.prompt_tokens_details.cached_tokens
    assert cached > 0.5 * again.usage.prompt_tokens
    url, key = stack.config.gateway_url, read_local_keys(stack.config).worker
    async with asyncio.timeout(30), httpx.AsyncClient(headers={"authorization": f"Bearer {key}"}) as http:
        while True:
            shown = (await http.get(f"{url}/v1/episodes/{said['episode-id']}")).json()
            if shown.get("prefix", {}).get("turns") == 2:
                break
            await asyncio.sleep(0.1)
        assert shown["prefix"]["cached_tokens"] >= cached
        assert 0.0 < shown["prefix"]["hit_rate"] < 1.0
        metrics = (await http.get(f"{url}/metrics")).text
    assert f'hone_cached_prompt_tokens_total{{model="{stack.base}"}}' in metrics


async def test_auto_says_which_and_why(stack: Stack):
    """The rule decides by the request, and the answer has the name of what was chosen."""
    answer, said = await ask(stack, f"{stack.base}-auto", extra_headers={"x-hone-latency": "batch"})
    assert (answer.model, said["variant"], said["variant-reason"]) == (stack.base, "standard", "latency_batch")
    answer, said = await ask(stack, f"{stack.base}-auto", max_tokens=32)
    assert said["variant-reason"] in {"interactive", "low_acceptance", "speculation_off", "fast_busy"}
    assert answer.model == (f"{stack.base}-fast" if said["variant"] == "fast" else stack.base)
