"""Answers given under an idempotency key, so that a repeated request gets the same answer and the same Turns."""

import asyncio
import time
from collections import OrderedDict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

REMEMBERED_SECONDS = 3600.0
LARGEST_REPLAY_BYTES = 256 * 1024
"""Longer answers are not kept: the model is asked again, and the first answer stays the recorded one."""
_MOST_REMEMBERED = 10_000
_MOST_REPLAY_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class RecordedAnswer:
    """Where the first answer to a request was recorded."""

    episode_id: str
    index: int
    turn_ids: tuple[str, ...]
    at: float
    request_digest: bytes = b""
    """Of the body; empty where it is not known."""
    sent: bytes | None = None
    """What the client was sent, where it is kept."""
    target: object = None
    """What answered (``gateway.inference.target.Target``)."""


@dataclass(slots=True)
class _Turnstile:
    """Lets the requests under one key through one after the other."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    users: int = 0


class RecordedAnswers:
    """What this process recorded; across processes the store refuses the second Turn all the same."""

    def __init__(self) -> None:
        self._answers: OrderedDict[tuple[str, str], RecordedAnswer] = OrderedDict()
        self._underway: dict[tuple[str, str], _Turnstile] = {}
        self._bytes = 0

    @asynccontextmanager
    async def one_at_a_time(self, tenant_id: str, key: str | None) -> AsyncIterator[None]:
        """Hold ``key`` for one request; a second one waits, and then finds what the first one recorded.

        Without a key nothing is held. A first request that fails leaves the key to the second.
        """
        if key is None:
            yield
            return
        turnstile = self._underway.setdefault((tenant_id, key), _Turnstile())
        turnstile.users += 1
        try:
            async with turnstile.lock:
                yield
        finally:
            turnstile.users -= 1
            if turnstile.users == 0:
                del self._underway[tenant_id, key]

    def recall(self, tenant_id: str, key: str, choices: int) -> RecordedAnswer | None:
        """The answer recorded under ``key`` for as many choices, if it is remembered."""
        answer = self._answers.get((tenant_id, key))
        if answer is not None and time.monotonic() - answer.at > REMEMBERED_SECONDS:
            self._bytes -= len(answer.sent or b"")
            del self._answers[tenant_id, key]
            return None
        return answer if answer is not None and len(answer.turn_ids) == choices else None

    def remember(self, tenant_id: str, key: str, answer: RecordedAnswer) -> None:
        """Keep an answer, and forget the oldest beyond a fixed number."""
        if (tenant_id, key) in self._answers:
            return
        self._answers[tenant_id, key] = answer
        self._bytes += len(answer.sent or b"")
        while len(self._answers) > _MOST_REMEMBERED or self._bytes > _MOST_REPLAY_BYTES:
            _, oldest = self._answers.popitem(last=False)
            self._bytes -= len(oldest.sent or b"")
