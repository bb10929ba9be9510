"""A program that stays alive in a box and is asked one line after another."""

import asyncio
import socket
import time
from collections.abc import Awaitable, Callable
from typing import Any

from core.errors import HoneError
from sandbox.runtimes.base import ExecResult, Outcome

_TICK_SECONDS = 0.05


class ConversationEnded(HoneError):
    """The program is gone; ``result`` says how it ended."""

    def __init__(self, result: ExecResult) -> None:
        super().__init__(f"the program in the box ended: {result.outcome.value} {result.stderr.strip()}".rstrip())
        self.result = result


class LocalConversation:
    """See ``sandbox.runtimes.base.Conversation``. One question at a time."""

    def __init__(
        self,
        *,
        streams: socket.socket,
        ended: "asyncio.Future[dict[str, Any]]",
        exceeded: Callable[[], bool],
        finish: Callable[[Outcome | None], Awaitable[ExecResult]],
        most_bytes: int,
    ) -> None:
        """``ended`` is the end of the program, ``finish`` ends it and tells how; ``most_bytes`` bounds an answer."""
        self._streams = streams
        self._ended = ended
        self._exceeded = exceeded
        self._finish = finish
        self._most_bytes = most_bytes
        self._result: ExecResult | None = None
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    @property
    def alive(self) -> bool:
        """Whether it can be asked."""
        return self._result is None and not self._ended.done()

    async def open(self) -> None:
        """Take over the socket."""
        self._reader, self._writer = await asyncio.open_connection(sock=self._streams, limit=self._most_bytes)

    async def close(self) -> ExecResult:
        """End the program and tell how it ended; closing twice is fine."""
        if self._result is None:
            self._result = await self._finish(None)
        if self._writer is not None:
            self._writer.close()
        return self._result

    async def ask(self, line: str, *, wall_seconds: float) -> str:
        """Send one line and wait for one line."""
        if self._result is not None:
            raise ConversationEnded(self._result)
        answer = asyncio.ensure_future(self._exchange(line))
        try:
            cause = await self._wait(answer, time.monotonic() + wall_seconds)
            if cause is None and answer.done() and (text := answer.result()) is not None:
                return text
            self._result = await self._finish(cause)
        except asyncio.CancelledError:
            # What it would answer later belongs to no question: it is over.
            self._result = await asyncio.shield(self._finish(Outcome.KILLED))
            raise
        finally:
            answer.cancel()
        raise ConversationEnded(self._result)

    async def settle(self) -> None:
        """Raise ConversationEnded when the box's memory was found full, which can show after an answer."""
        if self._result is None and self._exceeded():
            self._result = await self._finish(Outcome.OOM)
        if self._result is not None:
            raise ConversationEnded(self._result)

    async def _exchange(self, line: str) -> str | None:
        assert self._reader is not None and self._writer is not None
        try:
            self._writer.write(line.encode(errors="replace") + b"\n")
            await self._writer.drain()
            data = await self._reader.readline()
        except (OSError, ValueError):  # the other end is gone, or sends more than an answer may be
            return None
        return data.decode(errors="replace") if data.endswith(b"\n") else None

    async def _wait(self, answer: "asyncio.Future[str | None]", deadline: float) -> Outcome | None:
        """Returns why the program has to be ended, if so."""
        waited: set[asyncio.Future[Any]] = {answer, self._ended}
        while not answer.done() and not self._ended.done():
            left = max(0.0, min(deadline - time.monotonic(), _TICK_SECONDS))
            await asyncio.wait(waited, timeout=left, return_when=asyncio.FIRST_COMPLETED)
            if answer.done() or self._ended.done():
                break
            if self._exceeded():
                return Outcome.OOM
            if time.monotonic() >= deadline:
                return Outcome.TIMEOUT
        return None
