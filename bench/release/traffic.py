"""Clients of the live run: each asks, judges the answer by itself, says so as feedback, and asks again."""

import asyncio
import random
import time
from dataclasses import dataclass

import aiohttp

from bench.release.words import score

_MAX_TOKENS = 20
_PAUSE_SECONDS = 0.2


@dataclass(frozen=True)
class Reply:
    """One answered request. ``asked_at`` is Unix time."""

    asked_at: float
    version: int
    reward: float


class Traffic:
    """Some clients without a pause; every request is an Episode of its own."""

    def __init__(self, *, url: str, key: str, model: str, pairs: list[tuple[str, str]], count: int) -> None:
        self.replies: list[Reply] = []
        self.failures: list[str] = []
        self._url = url
        self._key = key
        self._model = model
        self._pairs = pairs
        self._count = count
        self._random = random.Random(1)
        self._stop = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> "Traffic":
        headers = {"authorization": f"Bearer {self._key}"}
        self._session = aiohttp.ClientSession(self._url, headers=headers, timeout=aiohttp.ClientTimeout(total=120.0))
        self._tasks = [asyncio.create_task(self._talk()) for _ in range(self._count)]
        return self

    async def __aexit__(self, *_: object) -> None:
        """Let answers under way end, then go."""
        self._stop.set()
        await asyncio.gather(*self._tasks)
        await self._session.close()

    async def _talk(self) -> None:
        while not self._stop.is_set():
            question, wanted = self._random.choice(self._pairs)
            try:
                asked_at = time.time()
                text, version, episode = await ask(self._session, self._model, question, temperature=0.7)
                reward = score(text, wanted)
                self.replies.append(Reply(asked_at, version, reward))
                said = {"episode_id": episode, "name": "right", "value": reward}
                async with self._session.post("/v1/feedback", json=said) as answer:
                    answer.raise_for_status()
            except (aiohttp.ClientError, TimeoutError) as error:
                self.failures.append(f"{type(error).__name__}: {error}")
                await asyncio.sleep(_PAUSE_SECONDS)


async def ask(
    session: aiohttp.ClientSession, model: str, question: str, *, temperature: float
) -> tuple[str, int, str]:
    """The answer, the version that gave it, and its Episode."""
    body = {
        "model": model,
        "messages": [{"role": "user", "content": question}],
        "max_tokens": _MAX_TOKENS,
        "temperature": temperature,
    }
    async with session.post("/v1/chat/completions", json=body) as answer:
        answer.raise_for_status()
        found = await answer.json()
        headers = answer.headers
        version, episode = int(headers["x-hone-policy-version"]), headers["x-hone-episode-id"]
    return found["choices"][0]["message"]["content"] or "", version, episode
