"""Line: one limit of one Tenant or key, with the part of it that this replica has leased and not used."""

import math
from enum import StrEnum

from gateway.limits.headers import window_headers
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
_NEVER = -math.inf
_SCARCE = 16
_SCARCE_SHARE = 8


class Line:
    """One limit. All methods are arithmetic without I/O; times are seconds of a monotonic clock.

    Windows are leased for a second or two and what is left then goes back; holds are kept while they are used.
    """

    __slots__ = (
        "_block",
        "_given_up",
        "_pending",
        "_refused_need",
        "_refused_until",
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
        "limit_header",
        "owner",
        "remaining_name",
        "reset_header",
        "touched",
        "unit",
        "unleased",
        "used_up",
    )

    def __init__(self, *, counter: str, unit: Unit, owner: str, limit: int) -> None:
        self.counter = counter
        self.unit = unit
        self.index = UNITS.index(unit)
        """Place of the unit in UNITS."""
        self.owner = owner
        self.limit = limit
        if unit in _WINDOWS:
            self._write_headers()
        self.is_window = unit in _WINDOWS
        self.kind = CounterKind.WINDOW if self.is_window else CounterKind.HOLD
        self.bucket = 0
        self.expires = _NEVER if self.is_window else math.inf
        self.held = 0
        """A hold's amount in requests that run; what is leased ahead comes on top."""
        self.last_need = 0
        """What the last Ask needed."""
        self.touched = 0.0
        """When a hold was last used, or a lease last asked for or granted."""
        self.used_up = 0
        """A hold's use that the counters do not know yet."""
        self.available = 0
        """What is leased and not taken."""
        self.unleased = limit
        """What was free beside the lease when the counters last said it."""
        self._block = 0
        self._reset_at = 0.0
        self._retry_at = 0.0
        self._refused_need = 0
        self._refused_until = _NEVER
        self._pending: dict[int, int] = {}
        """A window's bucket → what goes back to it."""
        self._given_up = 0
        """What a hold gives back."""

    def set_limit(self, limit: int) -> None:
        """The limit was changed, perhaps."""
        if limit != self.limit:
            self.limit = limit
            self._refused_until = _NEVER
            if self.is_window:
                self._write_headers()

    def covers(self, need: int, now: float) -> bool:
        """Whether the lease is enough."""
        return self.available >= need and now < self.expires

    def hold(self, amount: int, now: float) -> None:
        """Use some of a hold's lease."""
        self.available -= amount
        self.held += amount
        self.touched = now

    def unhold(self, amount: int) -> None:
        """Give back what a hold held."""
        self.held -= amount
        self._given_up += amount
        self._refused_until = _NEVER

    @property
    def scarce(self) -> bool:
        """Whether others may want what comes back at once: little was free when the counters last said it."""
        return self.unleased < _SCARCE + self.limit // _SCARCE_SHARE

    def untake(self, amount: int, bucket: int) -> None:
        """Give back what was taken of a window: to the lease it is of, else to the counters (below 0: used more).

        What comes back to a lease that has just ended goes on to the counters with the rest of it.
        """
        if bucket == self.bucket and self.expires > _NEVER and self.available + amount >= 0:
            self.available += amount
        else:
            # What went beyond its reservation counts from now on.
            self._add_pending(bucket if amount >= 0 else max(bucket, self.bucket), amount)
        self._refused_until = _NEVER

    def give_back(self, amount: int, bucket: int) -> None:
        """Give back a grant that was never taken in."""
        if self.is_window:
            self._add_pending(bucket, amount)
        else:
            self._given_up += amount

    def use(self, reserved: int, used: int) -> None:
        """A hold's reservation has become use that stays."""
        self.held -= reserved
        self._given_up += reserved
        self.used_up += used
        self._refused_until = _NEVER

    def reclaim(self) -> None:
        """Use again what a hold gave back and the counters have not heard of, less what was used up of it."""
        given_back = self._given_up - self.used_up
        if given_back > 0:
            self._given_up -= given_back
            self.available += given_back

    @property
    def untold(self) -> bool:
        """Whether the counters have not heard of something that was given back."""
        return bool(self._pending or self._given_up)

    def refused_seconds(self, need: int, now: float) -> float:
        """How long a refusal of no greater need still stands; 0: ask again."""
        return max(0.0, self._refused_until - now) if need >= self._refused_need else 0.0

    def ask(self, need: int, floor: int, now: float) -> Ask:
        """What to ask the counters for; a window's old lease goes back with it."""
        missing, back = (need, self.available) if self.is_window else (need - self.available, 0)
        self._block = min(max(1, self.limit // _BLOCK_SHARE), max(1, self._block * 2, need))
        self.last_need = missing
        self.touched = now
        ask = Ask(self.counter, self.kind, self.limit, missing, missing + self._block, back, self.bucket, floor)
        if self.is_window:
            self.available = 0
            self.expires = _NEVER
        return ask

    def granted(self, grant: Grant, reservation: Reservation, sent: float) -> None:
        """Take a lease in."""
        self.unleased = grant.remaining
        self.available += grant.amount
        self._refused_until = _NEVER
        self.touched = sent
        if self.is_window:
            self.bucket = reservation.bucket
            self.expires = sent + reservation.fresh_seconds
            self._reset_at = self.expires + COUNTED_BUCKETS

    def refused(self, need: int, grant: Grant, now: float) -> None:
        """Remember for a moment that there is not enough."""
        self.unleased = grant.remaining
        self._refused_need = need
        self._retry_at = now + grant.retry_seconds
        self._refused_until = now + REFUSAL_SECONDS
        if self.is_window:
            self._refused_until = min(self._refused_until, self._retry_at)
            if self._retry_at < math.inf:
                self._reset_at = max(self._reset_at, self._retry_at)

    def remaining(self) -> int:
        """What is free, as far as this replica knows."""
        return max(0, self.unleased + self.available)

    def reset_seconds(self, now: float) -> float:
        """When a window will be empty if nothing more comes."""
        return min(max(0.0, self._reset_at - now), float(COUNTED_BUCKETS))

    def retry_seconds(self, now: float) -> float:
        """When the need that was refused may be met."""
        return max(0.0, self._retry_at - now)

    def expire(self, now: float, idle_seconds: float) -> None:
        """Let go what was leased ahead: a window's lease at its end, a hold's when no request came for a while."""
        if now < self.expires if self.is_window else now - self.touched < idle_seconds:
            return
        available, self.available = self.available, 0
        if self.is_window:
            self.expires = _NEVER
        if available > 0:
            self.give_back(available, self.bucket)
            self._block //= 2

    def changes(self, *, renew: bool) -> list[Change]:
        """What the counters have to be told; it counts as told."""
        if self.is_window:
            pending, self._pending = self._pending, {}
            return [Change(self.counter, self.kind, back=back, bucket=bucket) for bucket, back in pending.items()]
        used, self.used_up = self.used_up, 0
        given_up, self._given_up = self._given_up, 0
        if given_up or used or (renew and self.held + self.available > 0):
            return [Change(self.counter, self.kind, held=-given_up, used=used)]
        return []

    def adopt(self) -> Change | None:
        """For counters that know nothing of this replica yet: all that a hold has now."""
        self._pending.clear()
        self._given_up = 0
        self._refused_until = _NEVER
        if self.is_window:
            self.available = 0
            self.expires = _NEVER
            return None
        used, self.used_up = self.used_up, 0
        total = self.held + self.available
        return Change(self.counter, self.kind, held=total, used=used) if total or used else None

    @property
    def idle(self) -> bool:
        """Whether nothing hangs on it."""
        return not (self.held or self.available or self._pending or self._given_up or self.used_up)

    def _add_pending(self, bucket: int, amount: int) -> None:
        total = self._pending.get(bucket, 0) + amount
        if total:
            self._pending[bucket] = total
        else:
            self._pending.pop(bucket, None)

    def _write_headers(self) -> None:
        """While a lease stands, all of the window is still to come."""
        self.limit_header, (self.remaining_name, _), self.reset_header = window_headers(
            self.unit.value, self.limit, self.limit, float(COUNTED_BUCKETS)
        )
