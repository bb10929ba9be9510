"""UsageBook: what was used, counted in memory and written to the store every few seconds; the store is the truth."""

import time
from collections.abc import Callable

import structlog

from core.errors import StoreError
from core.usage import Usage, month_end, month_of
from store.store import Store

log = structlog.get_logger(__name__)

_ALL_KEYS = ""


class Tally:
    """Use of one key in one month that is not in the store yet."""

    __slots__ = ("completion_tokens", "cost", "key_id", "month", "prompt_tokens", "requests", "tenant_id")

    def __init__(self, tenant_id: str, key_id: str, month: str) -> None:
        self.tenant_id = tenant_id
        self.key_id = key_id
        self.month = month
        self.requests = self.prompt_tokens = self.completion_tokens = self.cost = 0

    def add(self, requests: int, prompt_tokens: int, completion_tokens: int, cost: int) -> None:
        """Count; numbers below 0 take back what was written."""
        self.requests += requests
        self.prompt_tokens += prompt_tokens
        self.completion_tokens += completion_tokens
        self.cost += cost

    def usage(self) -> Usage:
        """As it is written."""
        return Usage(
            tenant_id=self.tenant_id,
            key_id=self.key_id,
            month=self.month,
            requests=self.requests,
            prompt_tokens=self.prompt_tokens,
            completion_tokens=self.completion_tokens,
            cost_microdollars=self.cost,
        )


class UsageBook:
    """Tallies of this process, and the store's totals of those whose budget is limited."""

    def __init__(self, *, store: Store, now: Callable[[], float] = time.time) -> None:
        self._store = store
        self._now = now
        self._tallies: dict[tuple[str, str, str], Tally] = {}
        self._totals: dict[tuple[str, str, str], tuple[int, int]] = {}
        """(Tenant, key or all keys, month) → tokens and microdollars in the store."""
        self._month = month_of(now())
        self._month_ends = month_end(now())

    @property
    def month(self) -> str:
        """The present month."""
        if self._now() >= self._month_ends:
            last, self._month = self._month, month_of(self._now())
            self._month_ends = month_end(self._now())
            # Requests that began last month are still counted there.
            self._tallies = {key: tally for key, tally in self._tallies.items() if tally.requests or key[2] == last}
            self._totals = {key: total for key, total in self._totals.items() if key[2] == self._month}
        return self._month

    @property
    def seconds_left(self) -> float:
        """Until the next month."""
        return max(0.0, self._month_ends - self._now())

    def tally(self, tenant_id: str, key_id: str) -> Tally:
        """Where the present use of a key is counted."""
        return self._tally(tenant_id, key_id, self.month)

    def used(self, tenant_id: str, key_id: str | None) -> tuple[int, int]:
        """Tokens and microdollars of this month: the store's, and what this process has not written."""
        month = self.month
        tokens, cost = self._totals.get((tenant_id, key_id or _ALL_KEYS, month), (0, 0))
        for tally in self._tallies.values():
            if tally.tenant_id == tenant_id and tally.month == month and key_id in (None, tally.key_id):
                tokens += tally.prompt_tokens + tally.completion_tokens
                cost += tally.cost
        return tokens, cost

    async def load(self, tenant_id: str) -> None:
        """Read a Tenant's totals once a month; without the store its budget counts from what is known."""
        if (tenant_id, _ALL_KEYS, self.month) in self._totals:
            return
        try:
            async with self._store.reading() as work:
                self._know(tenant_id, await work.usage.list(tenant_id, self.month))
        except StoreError as error:
            log.warning("usage_not_read", tenant_id=tenant_id, error=str(error))

    def snapshot(self) -> list[Usage]:
        """What is to be written now."""
        return [tally.usage() for tally in self._tallies.values() if tally.requests]

    async def write(self, usages: list[Usage]) -> None:
        """Write a snapshot and read the totals of limited budgets again. Raises StoreError."""
        month = self.month
        watched = sorted({tenant_id for tenant_id, _, of in self._totals if of == month})
        if not usages and not watched:
            return
        async with self._store.transaction() as work:
            await work.usage.add(usages)
            totals = {tenant_id: await work.usage.list(tenant_id, month) for tenant_id in watched}
        for usage in usages:
            tally = self._tally(usage.tenant_id, usage.key_id, usage.month)
            tally.add(-usage.requests, -usage.prompt_tokens, -usage.completion_tokens, -usage.cost_microdollars)
        for tenant_id, rows in totals.items():
            self._know(tenant_id, rows)

    def _tally(self, tenant_id: str, key_id: str, month: str) -> Tally:
        found = self._tallies.get((tenant_id, key_id, month))
        if found is None:
            found = self._tallies[tenant_id, key_id, month] = Tally(tenant_id, key_id, month)
        return found

    def _know(self, tenant_id: str, rows: list[Usage]) -> None:
        month = self.month
        self._totals[tenant_id, _ALL_KEYS, month] = (
            sum(row.tokens for row in rows),
            sum(row.cost_microdollars for row in rows),
        )
        for row in rows:
            self._totals[tenant_id, row.key_id, month] = (row.tokens, row.cost_microdollars)
