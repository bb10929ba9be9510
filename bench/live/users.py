"""Simulated users of the live-learning benchmark: plain questions, and a taste for brevity that they never name."""

import asyncio
from dataclasses import dataclass
from typing import Any

import aiohttp

from core import ids
from core.access import ApiKey, Scope, Tenant, hash_key, mint_key
from store.store import Store


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


COUNTRIES = _words(
    "France Spain Italy Germany Japan China India Egypt Kenya Peru Chile Canada Mexico Brazil Norway Sweden Finland "
    "Greece Turkey Iran Iraq Nepal Poland Austria Portugal Ireland Cuba Ghana Morocco Thailand"
)
WORDS = _words(
    "hot big fast light happy early open strong rich young hard dry full high near clean loud soft sweet thick brave "
    "bright deep easy empty old quiet rough sharp short slow smooth tall tight warm weak wet wide wild wise"
)
KINDS = _words(
    "fruit vegetable bird fish flower tree metal planet river mountain colour sport dance game tool fabric spice "
    "drink cheese insect reptile mammal gas ocean desert island language currency instrument vehicle"
)
TENANTS = 4
MAX_TOKENS = 40
_BRIEF, _LONG = 4, 28
"""Words from which on an answer is worth less, and nothing."""
_SECONDS = 180.0
_NOT_SERVED = 409


def questions() -> list[str]:
    """All questions, each once, in an order that mixes the kinds."""
    asked = [f"What is the capital of {name}?" for name in COUNTRIES]
    asked += [f"What is the opposite of '{word}'?" for word in WORDS]
    asked += [f"Name one {kind}." for kind in KINDS]
    asked += [f"What is a {kind}?" for kind in KINDS]
    asked += [f"In which continent is {name}?" for name in COUNTRIES]
    asked += [f"Use the word '{word}' in a sentence." for word in WORDS]
    asked += [f"Which language do people speak in {name}?" for name in COUNTRIES]
    return [asked[place * 73 % len(asked)] for place in range(len(asked))]


def taste(answer: str) -> float:
    """How much the users like an answer, from 0 to 1: the fewer words the better."""
    words = len(answer.split())
    return min(max((_LONG - words) / (_LONG - _BRIEF), 0.0), 1.0) if words else 0.0


@dataclass(frozen=True)
class User:
    """One client."""

    key: str
    question: str


async def make_users(store: Store, asked: list[str]) -> list[User]:
    """A user with a key of its own for each question, over some tenants; all grant training."""
    async with store.transaction() as work:
        for number in range(TENANTS):
            await work.tenants.add(Tenant(id=f"ten_live_{number}", name=f"live {number}"))
        users = []
        for number, question in enumerate(asked):
            user = User(key=mint_key(), question=question)
            await work.api_keys.add(
                ApiKey(
                    id=ids.new_id(ids.KEY),
                    tenant_id=f"ten_live_{number % TENANTS}",
                    name=f"user {number}",
                    key_hash=hash_key(user.key),
                    scopes=frozenset({Scope.INFERENCE}),
                    training_granted=True,
                )
            )
            users.append(user)
    return users


class Clients:
    """What users do, over HTTP."""

    def __init__(self, url: str, session: aiohttp.ClientSession, *, at_once: int) -> None:
        self._url = url
        self._session = session
        self._slots = asyncio.Semaphore(at_once)

    async def ask(self, user: User, model: str, *, seed: int, train: bool = True) -> tuple[str, str]:
        """The answer's text and its Turn."""
        body = {
            "model": model,
            "messages": [{"role": "user", "content": user.question}],
            "temperature": 1.0,
            "seed": seed,
            "max_tokens": MAX_TOKENS,
        }
        async with self._slots:
            answer, headers = await self._post("/v1/chat/completions", user, body, train=train)
        return answer["choices"][0]["message"]["content"] or "", headers["x-hone-turn-id"]

    async def until_answered(self, user: User, model: str) -> None:
        """Wait until the gateway knows that a version is loaded. Raises TimeoutError."""
        async with asyncio.timeout(_SECONDS):
            while True:
                try:
                    await self.ask(user, model, seed=0, train=False)
                except aiohttp.ClientResponseError as error:
                    if error.status != _NOT_SERVED:
                        raise
                    await asyncio.sleep(0.2)
                else:
                    return

    async def ask_and_rate(self, user: User, model: str, *, seed: int) -> float:
        """One question and, once the answer is read, a score; what it was."""
        text, turn_id = await self.ask(user, model, seed=seed)
        score = round(taste(text), 2)
        await self._post("/v1/feedback", user, {"turn_id": turn_id, "name": "score", "value": score})
        return score

    async def _post(self, path: str, user: User, body: dict[str, Any], *, train: bool = True) -> tuple[Any, Any]:
        headers = {"authorization": f"Bearer {user.key}"} | ({} if train else {"x-hone-train": "false"})
        timeout = aiohttp.ClientTimeout(total=_SECONDS)
        async with self._session.post(self._url + path, json=body, headers=headers, timeout=timeout) as response:
            response.raise_for_status()
            return await response.json(), response.headers
