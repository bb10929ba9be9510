"""The answer to a request that was answered before under the same idempotency key: the very same bytes."""

import time
from collections.abc import AsyncIterator

from gateway.http.base import RawHeader
from gateway.idempotency import RecordedAnswer
from gateway.inference.stream import DONE, EventSplitter, event_data
from gateway.inference.target import Target


class ReplayedExchange:
    """Implements ``gateway.inference.base.Exchange``; asks no model, counts against no limit and records nothing."""

    __slots__ = ("_answer", "_sent", "clock", "first_event_at", "target")

    def __init__(self, answer: RecordedAnswer, sent: bytes, target: Target) -> None:
        self._answer = answer
        self._sent = sent
        self.target = target
        self.clock = time.perf_counter()
        self.first_event_at: float | None = None

    @property
    def episode_id(self) -> str:
        """The Episode of the first answer."""
        return self._answer.episode_id

    @property
    def turn_ids(self) -> tuple[str, ...]:
        """The Turns of the first answer."""
        return self._answer.turn_ids

    @property
    def headers(self) -> list[RawHeader]:
        """What the first answer was told to belong to."""
        return [
            *self.target.headers,
            (b"x-hone-episode-id", self.episode_id.encode()),
            (b"x-hone-turn-id", ",".join(self.turn_ids).encode()),
            (b"x-hone-replayed", b"true"),
        ]

    async def whole(self) -> bytes:
        """The answer's JSON."""
        return self._sent

    async def pieces(self) -> AsyncIterator[bytes]:
        """The whole stream at once."""
        yield self._sent

    async def events(self) -> AsyncIterator[bytes]:
        """The data of every event, without the closing mark."""
        for event in EventSplitter().feed(self._sent):
            data = event_data(event)
            if data is not None and data != DONE:
                yield data
