"""Limits that hold across replicas: each leases small parts of a limit ahead and admits from them by arithmetic.

One call to the counters covers everything that a request lacks. While they cannot be reached, a replica counts for
itself, within its share of the limit, and comes back by itself.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable

import structlog

from core.access import Allowance
from core.config.gateway import ModelPrice
from core.config.schema import HoneConfig
from core.errors import PermissionDenied, QuotaExceeded, RateLimited, StoreError
from core.variant import unsuffixed
from gateway.auth import Caller
from gateway.limits.admission import Admitted, rate_headers
from gateway.limits.line import BUDGETS, Line, Unit
from gateway.limits.plan import Plan
from gateway.limits.sharing import Sharing
from gateway.limits.usage import UsageBook
from gateway.metrics import GatewayMetrics
from store.counters import Reservation
from store.store import Store

log = structlog.get_logger(__name__)

_TICK_SECONDS = 0.25
_RENEW_SECONDS = 5.0
_IDLE_SECONDS = 300.0
_PLAN_SECONDS = 60.0
"""A Plan is made anew so often, in case somebody sets the wall clock, by which months end."""
_MICRO = 1_000_000


class LeasedLimits:
    """Implements ``gateway.limits.base.Limits``."""

    def __init__(
        self,
        *,
        config: HoneConfig,
        store: Store,
        metrics: GatewayMetrics,
        clock: Callable[[], float] = time.monotonic,
        unix_clock: Callable[[], float] = time.time,
    ) -> None:
        self._prices = config.gateway.prices
        self._flush_seconds = config.gateway.usage_flush_seconds
        self._metrics = metrics
        self._clock = clock
        self._book = UsageBook(store=store, now=unix_clock)
        self._lines: dict[str, Line] = {}
        self._sharing = Sharing(
            processes=config.gateway.workers, counters=store.counters, lines=self._lines, metrics=metrics, clock=clock
        )
        self._plans: dict[str, Plan] = {}
        self._locks: dict[str, asyncio.Lock] = {}
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._flushing = asyncio.Lock()
        self._stopping = False

    async def start(self) -> None:
        """See ``gateway.limits.base.Limits``."""
        await self._sharing.beat()
        self._stopping = False
        self._task = asyncio.create_task(self._run(), name="hone-limits")

    async def stop(self) -> None:
        """See ``gateway.limits.base.Limits``."""
        if self._task is not None:
            # Not cancelled: a write of usage that was cut off might be done twice.
            self._stopping = True
            self._wake.set()
            await self._task
            self._task = None
        for line in self._lines.values():
            line.expire(float("inf"), 0.0)
        await self.flush()

    def wake(self) -> None:
        """Tell the counters at once what was given back."""
        self._wake.set()

    async def admit(self, caller: Caller, model: str, *, stream: bool, tokens: int) -> Admitted:
        """See ``gateway.limits.base.Limits``."""
        admitted = self.admit_now(caller, model, stream=stream, tokens=tokens)
        if admitted is not None:
            return admitted
        plan, price, tokens = self._plans[caller.key.id], self.price(model) if self._prices else None, tokens or 1
        most = _most_microdollars(price, tokens)
        # In the order of UNITS.
        needs = (1, tokens, int(stream), tokens, most)
        await self._lease(plan, [(line, need) for line in plan.lines if (need := needs[line.index])])
        taken = plan.take(tokens, most, self._clock(), stream=stream)
        return Admitted(self, plan, price, tokens, most, taken, stream=stream)

    def admit_now(self, caller: Caller, model: str, *, stream: bool, tokens: int) -> Admitted | None:
        """See ``gateway.limits.base.Limits``."""
        now = self._clock()
        plan = self._plans.get(caller.key.id)
        if plan is None or plan.caller is not caller or now >= plan.until:
            plan = self._make_plan(caller, now)
        if plan.lists_models and not caller.may_use(model):
            raise PermissionDenied(
                f"the API key '{caller.key.name}' may not use the model '{model}'",
                hint="GET /v1/models lists those that it may use",
                param="model",
            )
        price = self.price(model) if self._prices else None
        if not plan.lines:
            return Admitted(self, plan, price, 0, 0, [], stream=False)
        tokens = tokens or 1
        most = _most_microdollars(price, tokens)
        if not plan.covers(tokens, most, now, stream=stream):
            for line in plan.lines:
                line.reclaim()
            if not plan.covers(tokens, most, now, stream=stream):
                return None
        return Admitted(self, plan, price, tokens, most, plan.take(tokens, most, now, stream=stream), stream=stream)

    async def flush(self) -> None:
        """Tell the counters and the store everything that they do not know yet."""
        async with self._flushing:
            usages = self._book.snapshot()
            # In this order: what the store knows must not reach the counters twice.
            await self._sharing.tell()
            try:
                await self._book.write(usages)
            except StoreError as error:
                log.warning("usage_not_written", error=str(error))

    async def _lease(self, plan: Plan, wanted: list[tuple[Line, int]]) -> None:
        """Lease what the request lacks; raises RateLimited. On return all lines cover it, without an await since."""
        tenant_id = plan.caller.tenant.id
        lock = self._locks.setdefault(tenant_id, asyncio.Lock())
        async with lock:
            if any(line.unit in BUDGETS for line, _ in wanted):
                await self._book.load(tenant_id)
            for line, _ in wanted:
                line.reclaim()
            told = False
            while True:
                now = self._clock()
                lacking = [(line, amount) for line, amount in wanted if not line.covers(amount, now)]
                if not lacking:
                    return
                for line, amount in lacking:
                    if line.refused_seconds(amount, now) > 0:
                        raise self._refusal(line, amount, wanted)
                late = self._sharing.telling or any(line.untold for line, _ in lacking)
                reservation = await self._reserve(plan, lacking)
                if not reservation.granted and late and not told:
                    # What this replica gave back a moment ago may have been counted still.
                    told = True
                    await asyncio.shield(asyncio.ensure_future(self._sharing.tell()))
                    continue
                self._take_in(reservation, lacking, wanted, now)

    async def _reserve(self, plan: Plan, lacking: list[tuple[Line, int]]) -> Reservation:
        """Ask the counters. If the client leaves meanwhile, what comes is given back: nobody else knows of it."""
        wants = [(line, amount, self._floor(plan, line)) for line, amount in lacking]
        asking = asyncio.ensure_future(self._sharing.reserve(wants))
        try:
            return await asyncio.shield(asking)
        except asyncio.CancelledError:
            asking.add_done_callback(lambda done: self._give_back(done, lacking))
            raise

    def _give_back(self, done: "asyncio.Future[Reservation]", lacking: list[tuple[Line, int]]) -> None:
        if done.cancelled() or done.exception() is not None:
            return
        reservation = done.result()
        for (line, _), grant in zip(lacking, reservation.grants, strict=True):
            line.give_back(grant.amount, reservation.bucket)
        self.wake()

    def _take_in(
        self,
        reservation: Reservation,
        lacking: list[tuple[Line, int]],
        wanted: list[tuple[Line, int]],
        sent: float,
    ) -> None:
        pairs = list(zip(lacking, reservation.grants, strict=True))
        if reservation.granted:
            for (line, _), grant in pairs:
                line.granted(grant, reservation, sent)
            return
        worst: tuple[float, Line, int] | None = None
        now = self._clock()
        for (line, amount), grant in pairs:
            if grant.remaining < line.last_need:
                line.refused(amount, grant, now)
                if worst is None or grant.retry_seconds > worst[0]:
                    worst = (grant.retry_seconds, line, amount)
        if worst is not None:
            raise self._refusal(worst[1], worst[2], wanted)
        raise RateLimited("a limit is reached", retry_after_seconds=1.0)

    def _refusal(self, line: Line, amount: int, wanted: list[tuple[Line, int]]) -> RateLimited:
        self._metrics.limited.labels(line.unit.value).inc()
        now = self._clock()
        headers = tuple(rate_headers([each for each, _ in wanted], now))
        if line.unit in BUDGETS:
            limit = f"{line.limit} tokens" if line.unit is Unit.BUDGET_TOKENS else f"${line.limit / _MICRO:g}"
            return QuotaExceeded(
                f"the {line.owner} has used up its budget of {limit} for {self._book.month} (UTC)",
                hint="it begins anew with the next month, or an administrator raises it",
                retry_after_seconds=self._book.seconds_left,
                headers=(*headers, (b"x-should-retry", b"false")),
            )
        if line.unit is Unit.STREAMS:
            return RateLimited(
                f"the {line.owner} has {line.limit} streams open, as many as it may",
                hint="try again when one of them has ended",
                retry_after_seconds=1.0,
                headers=headers,
            )
        return _window_refusal(line, amount, headers, line.retry_seconds(now))

    def price(self, model: str) -> ModelPrice | None:
        """What a model costs, by its name or that of its Policy; None: nothing."""
        found = self._prices.get(model)
        return found or self._prices.get(unsuffixed(model.partition("@")[0]))

    def _floor(self, plan: Plan, line: Line) -> int:
        if line.unit not in BUDGETS:
            return 0
        key_id = None if line.owner == "tenant" else plan.caller.key.id
        tokens, cost = self._book.used(plan.caller.tenant.id, key_id)
        return max(0, (tokens if line.unit is Unit.BUDGET_TOKENS else cost) - line.used_up)

    def _make_plan(self, caller: Caller, now: float) -> Plan:
        tenant, key, month = caller.tenant, caller.key, self._book.month
        lines = [
            *self._lines_of("tenant", tenant.id, tenant.id, tenant.allowance, month),
            *self._lines_of("API key", tenant.id, key.id, key.allowance, month),
        ]
        # After the month was asked for, which may have begun just now.
        until = now + min(self._book.seconds_left, _PLAN_SECONDS)
        plan = Plan(caller, lines, self._book.tally(tenant.id, key.id), month, until)
        self._plans[key.id] = plan
        return plan

    def _lines_of(self, owner: str, tenant_id: str, owner_id: str, allowance: Allowance, month: str) -> list[Line]:
        dollars = allowance.dollars_per_month
        limits = [
            (Unit.REQUESTS, allowance.requests_per_minute, ""),
            (Unit.TOKENS, allowance.tokens_per_minute, ""),
            (Unit.STREAMS, allowance.concurrent_streams, ""),
            (Unit.BUDGET_TOKENS, allowance.tokens_per_month, f":{month}"),
            (Unit.BUDGET_DOLLARS, None if dollars is None else round(dollars * _MICRO), f":{month}"),
        ]
        lines = []
        for unit, limit, suffix in limits:
            if limit is None:
                continue
            counter = f"{{{tenant_id}}}:{owner_id}:{unit}{suffix}"
            line = self._lines.get(counter)
            if line is None:
                line = self._lines[counter] = Line(counter=counter, unit=unit, owner=owner, limit=limit)
                line.touched = self._clock()
            line.set_limit(limit)
            lines.append(line)
        return lines

    async def housekeep(self) -> None:
        """Let leases go that are over, and tell the counters what was given back."""
        now = self._clock()
        for line in self._lines.values():
            line.expire(now, 2 * _TICK_SECONDS)
        await self._sharing.tell()

    async def renew(self) -> None:
        """Say that this replica lives and still holds what it holds; come back to shared counters after an outage."""
        await self._sharing.beat()
        self._forget_idle(self._clock())

    async def _run(self) -> None:
        renewed = flushed = self._clock()
        while not self._stopping:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_TICK_SECONDS):
                    await self._wake.wait()
            self._wake.clear()
            now = self._clock()
            try:
                await self.housekeep()
                if now - flushed >= self._flush_seconds:
                    flushed = now
                    await self.flush()
                if now - renewed >= _RENEW_SECONDS or self._sharing.degraded:
                    renewed = now
                    await self.renew()
            except Exception as error:
                log.exception("limits_tick_failed", error=repr(error))

    def _forget_idle(self, now: float) -> None:
        # What is being leased just now hangs on a line that shows nothing yet.
        leasing = tuple(f"{{{tenant_id}}}:" for tenant_id, lock in self._locks.items() if lock.locked())
        for counter, line in list(self._lines.items()):
            if counter.startswith(leasing):
                continue
            if line.idle and now - line.touched > _IDLE_SECONDS:
                del self._lines[counter]
        # A plan must not hold a line that is not told any more.
        for key_id, plan in list(self._plans.items()):
            if any(self._lines.get(line.counter) is not line for line in plan.lines):
                del self._plans[key_id]
        self._locks = {tenant_id: lock for tenant_id, lock in self._locks.items() if lock.locked()}


def _most_microdollars(price: ModelPrice | None, tokens: int) -> int:
    return 0 if price is None else round(max(price.prompt, price.completion) * tokens)


def _window_refusal(
    line: Line, amount: int, headers: tuple[tuple[bytes, bytes], ...], retry_seconds: float
) -> RateLimited:
    short = "RPM" if line.unit is Unit.REQUESTS else "TPM"
    used = max(0, line.limit - line.remaining())
    if amount > line.limit:
        error = RateLimited(
            f"the request is too large for the {line.owner}: {line.unit.value} per minute ({short}): "
            f"Limit {line.limit}, Requested {amount}",
            hint="shorten the prompt or lower max_tokens" if line.unit is Unit.TOKENS else None,
            retry_after_seconds=float("inf"),
            headers=(*headers, (b"x-should-retry", b"false")),
        )
    else:
        error = RateLimited(
            f"rate limit reached for the {line.owner} on {line.unit.value} per minute ({short}): "
            f"Limit {line.limit}, Used {used}, Requested {amount}",
            hint=f"try again in {max(1, round(retry_seconds + 0.5))}s",
            retry_after_seconds=retry_seconds,
            headers=headers,
        )
    error.type = line.unit.value
    return error
