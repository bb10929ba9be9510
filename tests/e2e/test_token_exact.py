"""Token-exact conversations on a real vLLM: sampled at temperature 1, with tools, and without drift."""

import asyncio
import itertools
from typing import Any

import httpx
import pytest

from core import ids
from core.episode import Episode
from core.policy import PolicyVersion
from core.trajectory import continues
from core.turn import Turn
from hone.opened_store import opened_store
from tests.e2e.conftest import Stack

pytestmark = [pytest.mark.engine, pytest.mark.timeout(900)]

TURNS = 20
PLAIN_TURNS = 6
"""Of the comparison: enough for every kind of request, twice."""
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": f"{name} two numbers",
            "parameters": {"type": "object", "properties": {"a": {"type": "number"}, "b": {"type": "number"}}},
        },
    }
    for name in ("add", "multiply")
]


async def converse(stack: Stack, version: PolicyVersion, exact: str, count: int) -> tuple[list[Turn], list[set[str]]]:
    """Turns of one attempt by both variants, whole and streamed; the Turns, and the answers' fields."""
    async with opened_store(stack.config) as store, store.transaction() as tx:
        # The stack's own: other tests add theirs.
        tenant = min(await tx.tenants.list(), key=lambda one: one.created_at)
        episode = Episode(
            id=ids.new_id(ids.EPISODE),
            tenant_id=tenant.id,
            policy=version.policy,
            version=version.version,
            purpose="train",
            trainable=True,
        )
        await tx.episodes.add(episode)
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": "You call tools."},
        {"role": "user", "content": "What is 12 + 30?"},
    ]
    fields: list[set[str]] = []
    headers = {"x-hone-episode-id": episode.id, "x-hone-token-exact": exact}
    async with stack.client() as client:
        for number in range(count):
            kind = ("required", "none", "auto")[number % 3]
            asked: dict[str, Any] = {
                "model": f"{version.policy}{'-fast' if number % 4 == 3 else ''}@{version.version}",
                "messages": messages,
                "tools": TOOLS,
                "tool_choice": kind,
                "temperature": 1.0,
                "seed": number,
                "max_tokens": (24, 12, 8)[number % 3],
                "extra_headers": headers,
            }
            if kind == "none":
                events = [event async for event in await client.chat.completions.create(**asked, stream=True)]
                text = "".join(event.choices[0].delta.content or "" for event in events if event.choices)
                message: dict[str, Any] = {"role": "assistant", "content": text}
                fields.append({name for event in events for name in event.model_dump()})
            else:
                answer = await client.chat.completions.create(**asked)
                message = answer.choices[0].message.model_dump(include={"role", "content", "tool_calls"})
                fields.append(set(answer.model_dump()) | set(answer.choices[0].model_dump()))
                assert answer.usage is not None and answer.choices[0].finish_reason is not None
            messages = [*messages, {name: value for name, value in message.items() if value is not None}]
            for call in message.get("tool_calls") or ():
                messages.append({"role": "tool", "tool_call_id": call["id"], "content": str(number * 7)})
            if messages[-1]["role"] == "assistant":
                messages.append({"role": "user", "content": f"And {number} times 3?"})
    async with asyncio.timeout(30), opened_store(stack.config) as store:
        while True:
            async with store.reading() as tx:
                turns = await tx.turns.for_episode(episode.id)
            if len(turns) == count:
                return turns, fields
            await asyncio.sleep(0.1)


def cached_tokens(stack: Stack) -> float:
    """Prompt tokens that the engines have found in their prefix caches so far."""
    lines = "\n".join(httpx.get(f"{url}/metrics").text for url in stack.engines.values()).splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith("vllm:prefix_cache_hits_total"))


def breaks(turns: list[Turn]) -> int:
    """How many Turns do not continue the one before."""
    return sum(not continues(earlier, later) for earlier, later in itertools.pairwise(turns))


async def test_a_conversation_of_twenty_turns_has_no_drift(stack: Stack, trained: PolicyVersion):
    """Every prompt begins with the ids before it; answers look as ever, and prefixes are reused."""
    before = cached_tokens(stack)
    turns, fields = await converse(stack, trained, "true", TURNS)
    exactly = cached_tokens(stack) - before
    _, plain_fields = await converse(stack, trained, "false", PLAIN_TURNS)
    assert breaks(turns) == 0
    assert all(turn.exact and turn.trainable for turn in turns)
    assert {turn.variant.value for turn in turns} == {"standard", "fast"}
    assert fields[:PLAIN_TURNS] == plain_fields
    assert exactly > 0
    metrics = httpx.get(f"{stack.config.gateway_url}/metrics").text
    assert "hone_exact_turns_total" in metrics and 'rendering="kept"' in metrics
