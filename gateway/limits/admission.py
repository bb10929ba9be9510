"""Admitted: a request that was let in, with what it has reserved."""

from collections.abc import Sequence
from typing import Protocol

from core.config.schema import ModelPrice
from gateway.limits.headers import RawHeader, window_headers
from gateway.limits.line import Line, Unit
from gateway.limits.usage import Tally


class Desk(Protocol):
    """Where an Admitted gives things back."""

    def now(self) -> float:
        """Seconds of the clock by which leases expire."""
        ...

    def wake(self) -> None:
        """Something is to be told to the other replicas at once."""
        ...


def microdollars(price: ModelPrice | None, prompt_tokens: int, completion_tokens: int) -> int:
    """What a request costs, in millionths of a dollar: a price per million tokens is one per token in these."""
    if price is None:
        return 0
    return round(price.prompt * prompt_tokens + price.completion * completion_tokens)


class Admitted:
    """Implements ``gateway.limits.base.Admission``."""

    __slots__ = ("_desk", "_price", "_taken", "_tally")

    def __init__(
        self, desk: Desk, tally: Tally, price: ModelPrice | None, taken: Sequence[tuple[Line, int, int]]
    ) -> None:
        self._desk = desk
        self._tally = tally
        self._price = price
        self._taken = taken
        """Line, amount, bucket."""

    @property
    def headers(self) -> list[RawHeader]:
        """See ``gateway.limits.base.Admission``."""
        return rate_headers([line for line, _, _ in self._taken], self._desk.now()) if self._taken else []

    def settle(self, *, prompt_tokens: int, completion_tokens: int) -> None:
        """See ``gateway.limits.base.Admission``."""
        cost = 0 if self._price is None else microdollars(self._price, prompt_tokens, completion_tokens)
        self._tally.add(1, prompt_tokens, completion_tokens, cost)
        if not self._taken:
            return
        used, now, kept = prompt_tokens + completion_tokens, self._desk.now(), []
        for line, amount, bucket in self._taken:
            if line.unit is Unit.TOKENS:
                line.untake(amount - used, bucket, now)
            elif line.unit is Unit.BUDGET_TOKENS:
                line.use(amount, used)
            elif line.unit is Unit.BUDGET_DOLLARS:
                line.use(amount, cost)
            elif line.unit is Unit.STREAMS:
                kept.append((line, amount, bucket))
        self._taken = kept

    def release(self) -> None:
        """See ``gateway.limits.base.Admission``."""
        if not self._taken:
            return
        taken, self._taken = self._taken, ()
        now = self._desk.now()
        for line, amount, bucket in taken:
            # A request that failed has counted as a request all the same.
            if line.unit is not Unit.REQUESTS:
                line.untake(amount, bucket, now)
            if not line.is_window:
                self._desk.wake()


def rate_headers(lines: Sequence[Line], now: float) -> list[RawHeader]:
    """Headers of the tightest window of each kind."""
    tightest: dict[str, tuple[int, Line]] = {}
    for line in lines:
        if line.is_window:
            remaining, unit = line.remaining(), line.unit_name
            if unit not in tightest or remaining < tightest[unit][0]:
                tightest[unit] = (remaining, line)
    headers: list[RawHeader] = []
    for unit, (remaining, line) in tightest.items():
        headers += window_headers(unit, line.limit, remaining, line.reset_seconds(now))
    return headers
