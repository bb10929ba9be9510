"""Admitted: a request that was let in, with what it has reserved."""

from collections.abc import Sequence
from typing import Protocol

from core.config.gateway import ModelPrice
from gateway.http.base import RawHeader
from gateway.limits.headers import window_headers
from gateway.limits.line import Line
from gateway.limits.plan import Plan


class Desk(Protocol):
    """Where an Admitted gives things back."""

    def wake(self) -> None:
        """Something is to be told to the other replicas at once."""
        ...

    def price(self, model: str) -> ModelPrice | None:
        """What a model costs; None: nothing."""
        ...


def microdollars(price: ModelPrice | None, prompt_tokens: int, completion_tokens: int) -> int:
    """What a request costs, in millionths of a dollar: a price per million tokens is one per token in these."""
    if price is None:
        return 0
    return round(price.prompt * prompt_tokens + price.completion * completion_tokens)


class Admitted:
    """Implements ``gateway.limits.base.Admission``."""

    __slots__ = ("_buckets", "_desk", "_microdollars", "_plan", "_price", "_settled", "_streams", "_tokens")

    def __init__(
        self,
        desk: Desk,
        plan: Plan,
        price: ModelPrice | None,
        tokens: int,
        most: int,
        buckets: list[int],
        *,
        stream: bool,
    ) -> None:
        self._desk = desk
        self._plan = plan
        self._price = price
        self._tokens = tokens
        self._microdollars = most
        self._buckets = buckets
        """Of the Plan's lines of tokens."""
        self._streams = plan.streams if stream else ()
        self._settled = not plan.lines
        """Nothing but streams is reserved."""

    @property
    def headers(self) -> list[RawHeader]:
        """See ``gateway.limits.base.Admission``; the reset is the one at the moment of admission."""
        headers: list[RawHeader] = []
        for first, second in self._plan.windows:
            tightest = first
            remaining, other = first.unleased + first.available, second.unleased + second.available
            if other < remaining:
                tightest, remaining = second, other
            headers += (
                tightest.limit_header,
                (tightest.remaining_name, b"%d" % (remaining if remaining > 0 else 0)),
                tightest.reset_header,
            )
        return headers

    def settle(self, *, prompt_tokens: int, completion_tokens: int, answered_by: str | None = None) -> None:
        """See ``gateway.limits.base.Admission``."""
        plan, used, cost = self._plan, prompt_tokens + completion_tokens, 0
        if answered_by is not None:
            self._price = self._desk.price(answered_by)
        if self._price is not None:
            cost = microdollars(self._price, prompt_tokens, completion_tokens)
        plan.tally.add(1, prompt_tokens, completion_tokens, cost)
        if self._settled:
            return
        self._settled = True
        tokens = self._tokens
        if plan.tokens:
            for line, bucket in zip(plan.tokens, self._buckets, strict=True):
                line.untake(tokens - used, bucket)
        for line in plan.tokens_of_month:
            line.use(tokens, used)
        if self._microdollars or cost:
            for line in plan.dollars:
                line.use(self._microdollars, cost)

    def release(self) -> None:
        """See ``gateway.limits.base.Admission``."""
        if self._settled and not self._streams:
            return
        returned, self._streams = [(line, 1) for line in self._streams], ()
        if not self._settled:
            self._settled = True
            returned += self._give_back()
        for line, amount in returned:
            line.unhold(amount)
            if line.scarce:
                self._desk.wake()

    def _give_back(self) -> list[tuple[Line, int]]:
        """Give back the tokens of a request that failed; which holds are to be given back.

        It has counted as a request all the same.
        """
        plan = self._plan
        for line, bucket in zip(plan.tokens, self._buckets, strict=True):
            line.untake(self._tokens, bucket)
        holds = [(line, self._tokens) for line in plan.tokens_of_month]
        return holds + [(line, self._microdollars) for line in plan.dollars] if self._microdollars else holds


def rate_headers(lines: Sequence[Line], now: float) -> list[RawHeader]:
    """Headers of the tightest window of each kind."""
    tightest: dict[str, tuple[int, Line]] = {}
    for line in lines:
        if line.is_window:
            remaining, unit = line.remaining(), line.unit.value
            if unit not in tightest or remaining < tightest[unit][0]:
                tightest[unit] = (remaining, line)
    headers: list[RawHeader] = []
    for unit, (remaining, line) in tightest.items():
        headers += window_headers(unit, line.limit, remaining, line.reset_seconds(now))
    return headers
