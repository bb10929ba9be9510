"""Users who talk to a Policy through the gateway and have a taste that they tell only by their feedback."""

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from core.access import Scope, Tenant
from serving.engines.fake_model import Generation, Sampling
from tests.gateway_harness import POLICY, Harness

ANSWER = 4
"""Tokens of every answer."""


def has_style(token: int) -> bool:
    """The hidden style: even token ids."""
    return token % 2 == 0


def style_share(tokens: Sequence[int]) -> float:
    """Share of the answer that is in style."""
    return sum(map(has_style, tokens)) / len(tokens)


def sampler(model: Any) -> Callable[..., Generation]:
    """Stands in for ``fake_model.generate``: a real model's tokens, with its log-probs."""

    def generate(_: str, prompt_ids: Sequence[int], sampling: Sampling, choice: int = 0, **__: Any) -> Generation:
        generator = torch.Generator().manual_seed(sampling.seed * 31 + choice)
        tokens, logprobs = torch.tensor([list(prompt_ids)]), []
        with torch.no_grad():
            for _step in range(ANSWER):
                distribution = model(input_ids=tokens).logits[0, -1].log_softmax(-1)
                chosen = torch.multinomial(distribution.exp(), 1, generator=generator)
                logprobs.append(float(distribution[chosen]))
                tokens = torch.cat([tokens, chosen[None]], dim=1)
        token_ids = tokens[0, len(prompt_ids) :].tolist()
        return Generation(token_ids, logprobs, ["e" if has_style(one) else "o" for one in token_ids], "stop", None)

    return generate


@dataclass
class User:
    """One client with a key of its own."""

    number: int
    tenant: str
    consents: bool

    @property
    def key(self) -> str:
        """Name of its key."""
        return f"user_{self.number}"

    def opinion(self, answer: str) -> dict[str, Any]:
        """Stars or a thumb for how much of the style there is, by a taste that is not quite sure."""
        taste = answer.count("e") / len(answer) + random.Random(self.number).uniform(-0.1, 0.1)
        if self.number % 2:
            return {"name": "thumbs_up", "value": taste > 0.5}
        return {"name": "stars", "value": round(min(max(1 + 4 * taste, 1.0), 5.0))}


async def make_users(harness: Harness, count: int, *, tenants: int = 4, silent_every: int = 10) -> list[User]:
    """Users dealt over tenants; every ``silent_every``-th one grants no training."""
    users = [
        User(number=number, tenant=f"ten_live_{number % tenants}", consents=number % silent_every != 0)
        for number in range(count)
    ]
    async with harness.store.transaction() as work:
        for tenant in sorted({user.tenant for user in users}):
            await work.tenants.add(Tenant(id=tenant, name=tenant))
    for user in users:
        await harness.add_key(user.key, scopes={Scope.INFERENCE}, training=user.consents, tenant=user.tenant)
    return users


async def ask_and_rate(harness: Harness, user: User) -> tuple[str, str]:
    """One question and, once the answer is read, the user's opinion; Episode and Turn."""
    body = {
        "model": POLICY,
        "messages": [{"role": "user", "content": f"q{user.number}"}],
        "seed": user.number + 1,
        "max_tokens": ANSWER + 8,
    }
    response = await harness.post("/v1/chat/completions", body, user.key)
    assert response.status == 200, await response.text()
    answer = (await response.json())["choices"][0]["message"]["content"]
    turn_id, episode_id = response.headers["x-hone-turn-id"], response.headers["x-hone-episode-id"]
    said = {"turn_id": turn_id} | user.opinion(answer)
    response = await harness.post("/v1/feedback", said, user.key)
    assert response.status == 201, await response.text()
    return episode_id, turn_id


async def talk(harness: Harness, users: Sequence[User], *, at_once: int = 8) -> dict[str, str]:
    """All users, some at a time; user key → Episode."""
    found: dict[str, str] = {}
    for start in range(0, len(users), at_once):
        chosen = users[start : start + at_once]
        for user, (episode_id, _) in zip(
            chosen, await asyncio.gather(*(ask_and_rate(harness, user) for user in chosen)), strict=True
        ):
            found[user.key] = episode_id
    return found
