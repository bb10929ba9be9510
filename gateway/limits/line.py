"""Line: one limit of one Tenant or key, with the part of it that this replica has leased and not used."""

import math
from enum import StrEnum

from store.counters import COUNTED_BUCKETS, Ask, Change, CounterKind, Grant, Reservation

_BLOCK_SHARE = 20
"""A lease reserves ahead at most this part of the limit."""
REFUSAL_SECONDS = 0.25
"""How long a refusal is repeated without asking again: others may have given back meanwhile."""


class Unit(StrEnum):
    """What a limit counts."""

    REQUESTS = "requests"
    TOKENS = "tokens"
    STREAMS = "streams"
    BUDGET_TOKENS = "budget_tokens"
    BUDGET_DOLLARS = "budget_dollars"
    """In millionths of a dollar."""


UNITS = tuple(Unit)
_WINDOWS = (Unit.REQUESTS, Unit.TOKENS)
BUDGETS = (Unit.BUDGET_TOKENS, Unit.BUDGET_DOLLARS)


class Line:
    """One limit. All methods are arithmetic without I/O; times are seconds of a monotonic clock.

    Windows are leased for a second or two and what is left then goes back; holds are kept while they are used.
    """

    __slots__ = (
        "_block",
        "_pending",
        "_refused_need",
        "_refused_until",
        "_remaining",
        "_reset_at",
        "_retry_at",
        "available",
        "bucket",
        "counter",
        "expires",
        "held",
        "index",
        "is_window",
        "kind",
        "last_need",
        "limit",
        "owner",
        "touched",
        "unit",
        "unit_name",
        "used_up",
    )

    def __init__(self, *, counter: str, unit: Unit, owner: str, limit: int) -> None:
        self.counter = counter
        self.unit = unit
        self.unit_name = unit.value
        self.index = UNITS.index(unit)
        """Place of the unit in UNITS."""
        self.owner = owner
        self.limit = limit
        self.is_window = unit in _WINDOWS
        self.kind = CounterKind.WINDOW if self.is_window else CounterKind.HOLD
        self.bucket = 0
        self.expires = -math.inf if self.is_window else math.inf
        self.held = 0
        """A hold's amount in requests that run; what is leased ahead comes on top."""
        self.last_need = 0
        """What the last Ask needed."""
        self.touched = 0.0
        self.used_up = 0
        """A hold's use that the counters do not know yet."""
        self.available = 0
        """What is leased and not taken."""
        self._block = 0
        self._remaining = limit
        self._reset_at = 0.0
        self._retry_at = 0.0
        self._refused_need = 0
        self._refused_until = -math.inf
        self._pending: dict[int, int] = {}
        """A window's bucket → what goes back to it; key 0 of a hold: what it gives up."""

    def set_limit(self, limit: int) -> None:
        """The limit was changed, perhaps."""
        if limit != self.limit:
            self.limit = limit
            self._refused_until = -math.inf

    def covers(self, need: int, now: float) -> bool:
        """Whether the lease is enough."""
        return self.available >= need and now < self.expires

    def take(self, need: int, now: float) -> int:
        """Use some of the lease; the bucket to which it belongs."""
        self.available -= need
        self.touched = now
        if not self.is_window:
            self.held += need
        return self.bucket

    def untake(self, amount: int, bucket: int, now: float) -> None:
        """Give back what was taken: to the lease while that stands, else to the counters (below 0: used more)."""
        if not self.is_window:
            self.held -= amount
            self._add_pending(0, amount)
        elif bucket == self.bucket and now < self.expires and self.available + amount >= 0:
            self.available += amount
        else:
            # What went beyond its reservation counts from now on.
            self._add_pending(bucket if amount >= 0 else max(bucket, self.bucket), amount)
        self._refused_until = -math.inf

    def give_back(self, amount: int, bucket: int) -> None:
        """Give back a grant that was never taken in."""
        self._add_pending(bucket, amount)

    def use(self, reserved: int, used: int) -> None:
        """A hold's reservation has become use that stays."""
        self.held -= reserved
        self._add_pending(0, reserved)
        self.used_up += used
        self._refused_until = -math.inf

    def reclaim(self) -> None:
        """Use again what a hold gave back and the counters have not heard of, less what was used up of it."""
        given_back = self._pending.get(0, 0) - self.used_up
        if not self.is_window and given_back > 0:
            self._add_pending(0, -given_back)
            self.available += given_back

    @property
    def untold(self) -> bool:
        """Whether the counters have not heard of something that was given back."""
        return bool(self._pending)

    def refused_seconds(self, need: int, now: float) -> float:
        """How long a refusal of no greater need still stands; 0: ask again."""
        return max(0.0, self._refused_until - now) if need >= self._refused_need else 0.0

    def ask(self, need: int, floor: int) -> Ask:
        """What to ask the counters for; a window's old lease goes back with it."""
        missing, back = (need, self.available) if self.is_window else (need - self.available, 0)
        self._block = min(max(1, self.limit // _BLOCK_SHARE), max(1, self._block * 2, need))
        self.last_need = missing
        ask = Ask(self.counter, self.kind, self.limit, missing, missing + self._block, back, self.bucket, floor)
        if self.is_window:
            self.available = 0
            self.expires = -math.inf
        return ask

    def granted(self, grant: Grant, reservation: Reservation, sent: float) -> None:
        """Take a lease in."""
        self._remaining = grant.remaining
        self.available += grant.amount
        self._refused_until = -math.inf
        self.touched = sent
        if self.is_window:
            self.bucket = reservation.bucket
            self.expires = sent + reservation.fresh_seconds
            self._reset_at = self.expires + COUNTED_BUCKETS

    def refused(self, need: int, grant: Grant, now: float) -> None:
        """Remember for a moment that there is not enough."""
        self._remaining = grant.remaining
        self._refused_need = need
        self._retry_at = now + grant.retry_seconds
        self._refused_until = now + REFUSAL_SECONDS
        if self.is_window:
            self._refused_until = min(self._refused_until, self._retry_at)
            if self._retry_at < math.inf:
                self._reset_at = max(self._reset_at, self._retry_at)

    def remaining(self) -> int:
        """What is free, as far as this replica knows."""
        return max(0, self._remaining + self.available)

    def reset_seconds(self, now: float) -> float:
        """When a window will be empty if nothing more comes."""
        return min(max(0.0, self._reset_at - now), float(COUNTED_BUCKETS))

    def retry_seconds(self, now: float) -> float:
        """When the need that was refused may be met."""
        return max(0.0, self._retry_at - now)

    def expire(self, now: float, idle_seconds: float) -> None:
        """Let go what was leased ahead: a window's lease at its end, a hold's when no request came for a while."""
        over = now >= self.expires if self.is_window else now - self.touched >= idle_seconds
        if self.available > 0 and over:
            self._add_pending(self.bucket, self.available)
            self.available = 0
            self._block //= 2

    def changes(self, *, renew: bool) -> list[Change]:
        """What the counters have to be told; it counts as told."""
        pending, self._pending = self._pending, {}
        if self.is_window:
            return [Change(self.counter, self.kind, back=back, bucket=bucket) for bucket, back in pending.items()]
        used, self.used_up = self.used_up, 0
        given_up = pending.get(0, 0)
        if given_up or used or (renew and self.held + self.available > 0):
            return [Change(self.counter, self.kind, held=-given_up, used=used)]
        return []

    def adopt(self) -> Change | None:
        """For counters that know nothing of this replica yet: all that a hold has now."""
        self._pending.clear()
        self._refused_until = -math.inf
        if self.is_window:
            self.available = 0
            self.expires = -math.inf
            return None
        used, self.used_up = self.used_up, 0
        total = self.held + self.available
        return Change(self.counter, self.kind, held=total, used=used) if total or used else None

    @property
    def idle(self) -> bool:
        """Whether nothing hangs on it."""
        return not (self.held or self.available or self._pending or self.used_up)

    def _add_pending(self, bucket: int, amount: int) -> None:
        key = bucket if self.is_window else 0
        total = self._pending.get(key, 0) + amount
        if total:
            self._pending[key] = total
        else:
            self._pending.pop(key, None)
