"""The subscriptions of one process: what every transport of events wakes."""

import asyncio
from collections.abc import Collection, Iterator
from contextlib import contextmanager


class WakeFlag:
    """A Subscription that remembers one wake-up until somebody waits for it."""

    def __init__(self, topics: frozenset[str], subscribers: "Subscribers") -> None:
        self.topics = topics
        self._subscribers = subscribers
        self._event = asyncio.Event()

    def raise_flag(self) -> None:
        """Let the present or the next ``wait`` return True."""
        self._event.set()

    async def wait(self, timeout_seconds: float) -> bool:
        """See ``store.events.Subscription``."""
        with self._subscribers.counted_as_waiting():
            try:
                async with asyncio.timeout(timeout_seconds):
                    await self._event.wait()
            except TimeoutError:
                return False
        self._event.clear()
        return True


class Subscribers:
    """All WakeFlags of one process."""

    def __init__(self) -> None:
        self._flags: set[WakeFlag] = set()
        self._waiting = 0
        self.somebody_waits = asyncio.Event()
        """Set while at least one flag is waited for."""

    @contextmanager
    def added(self, topics: Collection[str]) -> Iterator[WakeFlag]:
        """A flag for ``topics`` that lives as long as the block."""
        flag = WakeFlag(frozenset(topics), self)
        self._flags.add(flag)
        try:
            yield flag
        finally:
            self._flags.discard(flag)

    @contextmanager
    def counted_as_waiting(self) -> Iterator[None]:
        """Somebody waits for the length of the block."""
        self._waiting += 1
        self.somebody_waits.set()
        try:
            yield
        finally:
            self._waiting -= 1
            if self._waiting == 0:
                self.somebody_waits.clear()

    def wake(self, topic: str) -> None:
        """Raise the flags that watch ``topic``."""
        for flag in self._flags:
            if topic in flag.topics:
                flag.raise_flag()
