"""Plan: all limits that concern one key, sorted once so that a request only does sums over them."""

from collections.abc import Sequence

from gateway.auth import Caller
from gateway.limits.line import Line, Unit
from gateway.limits.usage import Tally


class Plan:
    """The lines of one Caller in one month; those of its Tenant come before its key's."""

    __slots__ = (
        "caller",
        "dollars",
        "lines",
        "lists_models",
        "month",
        "requests",
        "streams",
        "tally",
        "tokens",
        "tokens_of_month",
        "until",
        "windows",
    )

    def __init__(self, caller: Caller, lines: Sequence[Line], tally: Tally, month: str, until: float) -> None:
        self.caller = caller
        self.lines = tuple(lines)
        self.tally = tally
        self.month = month
        self.until = until
        """Second of the limits' clock from which the Plan is made anew: at the latest when the month ends."""
        self.lists_models = caller.tenant.models is not None or caller.key.models is not None
        """Whether Tenant or key allow some models only."""
        self.requests = self._of(Unit.REQUESTS)
        self.tokens = self._of(Unit.TOKENS)
        self.streams = self._of(Unit.STREAMS)
        self.tokens_of_month = self._of(Unit.BUDGET_TOKENS)
        self.dollars = self._of(Unit.BUDGET_DOLLARS)
        self.windows = tuple((lines[0], lines[-1]) for lines in (self.requests, self.tokens) if lines)
        """Of each kind of window the Tenant's and the key's line: the same one twice where only one is limited."""

    def covers(self, tokens: int, microdollars: int, now: float, *, stream: bool) -> bool:
        """Whether what is leased is enough for a request."""
        for line in self.requests:
            if line.available < 1 or now >= line.expires:
                return False
        for line in self.tokens:
            if line.available < tokens or now >= line.expires:
                return False
        for line in self.tokens_of_month:
            if line.available < tokens:
                return False
        if stream:
            for line in self.streams:
                if line.available < 1:
                    return False
        return not microdollars or all(line.available >= microdollars for line in self.dollars)

    def take(self, tokens: int, microdollars: int, now: float, *, stream: bool) -> list[int]:
        """Use some of the leases, which must cover it; the buckets to which the tokens belong."""
        for line in self.requests:
            line.available -= 1
        buckets = []
        for line in self.tokens:
            line.available -= tokens
            buckets.append(line.bucket)
        for line in self.tokens_of_month:
            line.hold(tokens, now)
        if stream:
            for line in self.streams:
                line.hold(1, now)
        if microdollars:
            for line in self.dollars:
                line.hold(microdollars, now)
        return buckets

    def _of(self, unit: Unit) -> tuple[Line, ...]:
        return tuple([line for line in self.lines if line.unit is unit])
