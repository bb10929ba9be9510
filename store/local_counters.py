"""Counters in memory: of one process, or of several replicas that share a Ledger (in tests)."""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from core import ids
from store.counters import (
    COUNTED_BUCKETS,
    HOLD_SECONDS,
    LEASE_BUCKETS,
    SPARE_SHARE,
    Ask,
    Change,
    CounterKind,
    Grant,
    Reservation,
)

_PRUNE_EVERY = 4096


@dataclass(slots=True)
class _Hold:
    used: int = 0
    parts: dict[str, tuple[int, float]] = field(default_factory=dict)
    """Replica → what it holds and until when."""


class Ledger:
    """The arithmetic of windows and holds, without I/O; ``clock`` gives seconds."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self.replicas: dict[str, float] = {}
        self._windows: dict[str, dict[int, int]] = {}
        self._holds: dict[str, _Hold] = {}
        self._calls = 0

    def reserve(self, replica: str, asks: Sequence[Ask]) -> Reservation:
        """See ``Counters.reserve``."""
        now = self.clock()
        bucket = math.floor(now)
        self._prune_sometimes(now)
        free = [self._free(ask, now) for ask in asks]
        granted = all(left >= ask.need for left, ask in zip(free, asks, strict=True))
        grants = []
        for left, ask in zip(free, asks, strict=True):
            if granted:
                spare = max(0, min(ask.want - ask.need, (left - ask.need) // SPARE_SHARE))
                self._take(replica, ask, ask.need + spare, now)
                grants.append(Grant(ask.need + spare, left - ask.need - spare, 0.0))
            else:
                grants.append(Grant(0, max(0, left), self._retry_seconds(ask, left, now)))
        return Reservation(tuple(grants), granted, bucket, bucket + LEASE_BUCKETS - now)

    def change(self, replica: str, change: Change) -> None:
        """See ``Counters.change``."""
        now = self.clock()
        if change.kind is CounterKind.WINDOW:
            self._give_back(change.counter, change.bucket, change.back, now)
            return
        hold = self._holds.setdefault(change.counter, _Hold())
        hold.used = max(0, hold.used + change.used)
        held = max(0, hold.parts.get(replica, (0, 0.0))[0] + change.held)
        if held:
            hold.parts[replica] = (held, now + HOLD_SECONDS)
        else:
            hold.parts.pop(replica, None)

    def _free(self, ask: Ask, now: float) -> int:
        if ask.kind is CounterKind.WINDOW:
            if ask.back:
                self._give_back(ask.counter, ask.back_bucket, ask.back, now)
            return ask.limit - sum(self._window(ask.counter, now).values())
        hold = self._holds.setdefault(ask.counter, _Hold())
        hold.used = max(hold.used, ask.floor)
        return ask.limit - hold.used - sum(held for held, until in hold.parts.values() if until > now)

    def _take(self, replica: str, ask: Ask, amount: int, now: float) -> None:
        if ask.kind is CounterKind.WINDOW:
            window = self._windows.setdefault(ask.counter, {})
            window[math.floor(now)] = window.get(math.floor(now), 0) + amount
        else:
            self.change(replica, Change(ask.counter, ask.kind, held=amount))

    def _give_back(self, counter: str, bucket: int, amount: int, now: float) -> None:
        window = self._windows.get(counter)
        if amount < 0:
            window = self._windows.setdefault(counter, {})
        elif window is None or bucket not in window:
            return
        if math.floor(now) - COUNTED_BUCKETS < bucket <= math.floor(now):
            window[bucket] = max(0, window.get(bucket, 0) - amount)

    def _window(self, counter: str, now: float) -> dict[int, int]:
        """The buckets that count; the others are dropped on the way."""
        oldest = math.floor(now) - COUNTED_BUCKETS
        window = {bucket: n for bucket, n in self._windows.get(counter, {}).items() if bucket > oldest and n > 0}
        if window:
            self._windows[counter] = window
        else:
            self._windows.pop(counter, None)
        return window

    def _retry_seconds(self, ask: Ask, free: int, now: float) -> float:
        if free >= ask.need or ask.kind is CounterKind.HOLD:
            return 0.0
        for bucket, amount in sorted(self._window(ask.counter, now).items()):
            free += amount
            if free >= ask.need:
                return bucket + COUNTED_BUCKETS - now
        return math.inf

    def _prune_sometimes(self, now: float) -> None:
        self._calls += 1
        if self._calls % _PRUNE_EVERY == 0:
            for counter in list(self._windows):
                self._window(counter, now)
            self._holds = {name: hold for name, hold in self._holds.items() if hold.parts or hold.used}


class LocalCounters:
    """Implements ``store.counters.Counters`` on a Ledger."""

    def __init__(self, ledger: Ledger | None = None) -> None:
        self._ledger = ledger or Ledger()
        self._replica = ids.new_id(ids.REPLICA)

    async def reserve(self, asks: Sequence[Ask]) -> Reservation:
        """See ``store.counters.Counters``."""
        return self._ledger.reserve(self._replica, asks)

    async def change(self, changes: Sequence[Change]) -> None:
        """See ``store.counters.Counters``."""
        for change in changes:
            self._ledger.change(self._replica, change)

    async def beat(self) -> int:
        """See ``store.counters.Counters``."""
        now = self._ledger.clock()
        self._ledger.replicas[self._replica] = now + HOLD_SECONDS
        return sum(1 for until in self._ledger.replicas.values() if until > now)

    def reborn(self) -> None:
        """See ``store.counters.Counters``."""
        self._replica = ids.new_id(ids.REPLICA)

    async def close(self) -> None:
        """See ``store.counters.Counters``."""
        self._ledger.replicas.pop(self._replica, None)
