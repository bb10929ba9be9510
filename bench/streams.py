"""Clients of a gateway: conversations of one or more streamed answers, and everything that arrived, with its time."""

import asyncio
import itertools
import json
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import aiohttp

_LONGEST_SECONDS = 300.0


@dataclass
class Answer:
    """One request and what came back. Times are ``time.monotonic`` of this process."""

    client: int
    conversation: int
    turn: int
    """Order in its conversation."""
    started: float
    engine_id: str = ""
    """The ``id`` that the engine gave the answer."""
    turn_id: str = ""
    episode_id: str = ""
    version: int = -1
    variant: str = ""
    ids: list[int] = field(default_factory=list)
    text: str = ""
    arrivals: list[float] = field(default_factory=list)
    """When each event with tokens arrived."""
    finish_reason: str | None = None
    counted: int | None = None
    """Output tokens by the engine's own usage."""
    ended: float = 0.0
    error: str | None = None
    """Why the request failed; None for a whole answer."""
    begun: bool = False
    """Something of an answer had arrived."""

    @property
    def seconds(self) -> float:
        """From the request to the end of its answer."""
        return self.ended - self.started

    @property
    def gaps(self) -> list[float]:
        """Seconds between events that carried tokens."""
        return [later - earlier for earlier, later in itertools.pairwise(self.arrivals)]

    def overlaps(self, begin: float, end: float) -> bool:
        """Whether it was open at some time between these."""
        return self.started < end and self.ended > begin


@dataclass(frozen=True)
class Conversations:
    """What clients say."""

    model: str
    openings: Sequence[str]
    turns: int = 1
    """Answers per conversation, all in one Episode."""
    follow_up: str = "Go on, in other words."
    max_tokens: int = 24
    temperature: float = 1.0
    stream: bool = True


class Clients:
    """Some clients that talk without a pause until they are told to stop; ``answers`` grows meanwhile."""

    def __init__(self, *, url: str, key: str, said: Conversations, count: int, seed: int = 0) -> None:
        self.answers: list[Answer] = []
        self.open: set[int] = set()
        """Clients that wait for an answer now."""
        self._url = f"{url}/v1/chat/completions"
        self._key = key
        self._said = said
        self._count = count
        self._random = random.Random(seed)
        self._numbers = itertools.count()
        self._stop = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._watchers: list[Callable[[Answer], None]] = []

    def watch(self, seen: Callable[[Answer], None]) -> None:
        """Call ``seen`` with every answer whose first tokens have just arrived."""
        self._watchers.append(seen)

    async def __aenter__(self) -> "Clients":
        connector = aiohttp.TCPConnector(limit=0)
        timeout = aiohttp.ClientTimeout(total=_LONGEST_SECONDS)
        headers = {"authorization": f"Bearer {self._key}"}
        self._session = aiohttp.ClientSession(connector=connector, timeout=timeout, headers=headers)
        self._tasks = [asyncio.create_task(self._talk(number)) for number in range(self._count)]
        return self

    async def __aexit__(self, *_: object) -> None:
        """Let answers under way end, then go."""
        self._stop.set()
        await asyncio.gather(*self._tasks)
        await self._session.close()

    async def once(self, *, max_tokens: int) -> Answer:
        """One request more, at once and beside the clients; it is kept with ``client`` -1."""
        messages = [{"role": "user", "content": f"({self._random.randrange(10**6)}) {self._said.openings[0]}"}]
        return await self._ask(-1, next(self._numbers), 0, messages, "", max_tokens=max_tokens)

    async def _talk(self, client: int) -> None:
        while not self._stop.is_set():
            conversation = next(self._numbers)
            opening = self._said.openings[conversation % len(self._said.openings)]
            # No two conversations begin alike: no answer is one to a known question, none is in another's cache.
            messages = [{"role": "user", "content": f"({self._random.randrange(10**6)}) {opening}"}]
            episode = ""
            for turn in range(self._said.turns):
                answer = await self._ask(client, conversation, turn, messages, episode)
                if answer.error is not None:
                    # A client that failed does not hammer the gateway.
                    await asyncio.sleep(0.2)
                    break
                if self._stop.is_set():
                    return
                episode = answer.episode_id
                messages = [
                    *messages,
                    {"role": "assistant", "content": answer.text},
                    {"role": "user", "content": self._said.follow_up},
                ]

    async def _ask(
        self,
        client: int,
        conversation: int,
        turn: int,
        messages: list[dict[str, str]],
        episode: str,
        *,
        max_tokens: int | None = None,
    ) -> Answer:
        answer = Answer(client, conversation, turn, time.monotonic())
        self.answers.append(answer)
        self.open.add(client)
        try:
            body = self._body(messages, max_tokens or self._said.max_tokens)
            headers = {"x-hone-episode-id": episode} if episode else {}
            async with self._session.post(self._url, json=body, headers=headers) as response:
                await self._read(response, answer)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            answer.error = f"{type(error).__name__}: {error}"
        answer.ended = time.monotonic()
        self.open.discard(client)
        return answer

    def _body(self, messages: list[dict[str, str]], max_tokens: int) -> dict[str, Any]:
        body: dict[str, Any] = {
            "model": self._said.model,
            "messages": messages,
            "max_tokens": max_tokens,
            "temperature": self._said.temperature,
            "return_token_ids": True,
        }
        if self._said.stream:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        return body

    async def _read(self, response: aiohttp.ClientResponse, answer: Answer) -> None:
        headers = response.headers
        if response.status != 200:
            answer.error = f"HTTP {response.status}: {(await response.text())[:300]}"
            return
        answer.turn_id = headers.get("x-hone-turn-id", "")
        answer.episode_id = headers.get("x-hone-episode-id", "")
        answer.version = int(headers.get("x-hone-policy-version", "-1"))
        answer.variant = headers.get("x-hone-variant", "")
        if not self._said.stream:
            self._take(answer, await response.json())
            return
        done = False
        async for line in response.content:
            if not line.startswith(b"data:"):
                continue
            data = line[5:].strip()
            done = done or data == b"[DONE]"
            if not done:
                self._take(answer, json.loads(data))
        if not done and answer.error is None:
            answer.error = "the stream ended without [DONE]"

    def _take(self, answer: Answer, payload: dict[str, Any]) -> None:
        """Add a whole answer or one event of a stream."""
        if "error" in payload:
            answer.error = f"in the stream: {payload['error']}"
            return
        first = not answer.arrivals
        answer.begun = True
        answer.engine_id = payload.get("id") or answer.engine_id
        if payload.get("usage"):
            answer.counted = payload["usage"].get("completion_tokens")
        for choice in payload.get("choices") or []:
            part = choice.get("delta") or choice.get("message") or {}
            answer.text += part.get("content") or ""
            answer.finish_reason = choice.get("finish_reason") or answer.finish_reason
            if choice.get("token_ids"):
                answer.ids += choice["token_ids"]
                answer.arrivals.append(time.monotonic())
        if first and answer.arrivals:
            for seen in self._watchers:
                seen(answer)
