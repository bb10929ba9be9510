"""Limits by arithmetic: over any interleaving of replicas no window holds more than its limit."""

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from core.access import Allowance, ApiKey, Scope, Tenant
from core.config.gateway import GatewaySection, ModelPrice
from core.config.schema import HoneConfig
from core.errors import PermissionDenied, QuotaExceeded, RateLimited, StoreError
from core.usage import month_end
from gateway.auth import Caller
from gateway.errors import error_headers
from gateway.limits.headers import duration
from gateway.limits.leased import LeasedLimits
from gateway.limits.line import Line, Unit
from gateway.metrics import GatewayMetrics
from store.counters import HOLD_SECONDS, WINDOW_SECONDS, Grant, Reservation
from store.local_counters import Ledger, LocalCounters


class Clock:
    """Time that a test moves."""

    def __init__(self) -> None:
        self.seconds = 1000.0

    def __call__(self) -> float:
        return self.seconds


@dataclass
class FakeUsage:
    """A usage table in memory."""

    rows: dict[tuple[str, str, str], Any] = field(default_factory=dict)

    async def list(self, tenant_id: str, month: str | None = None) -> list[Any]:
        return [row for key, row in self.rows.items() if key[0] == tenant_id and month in (None, key[2])]

    async def add(self, usages: Sequence[Any]) -> None:
        for usage in usages:
            key = (usage.tenant_id, usage.key_id, usage.month)
            old = self.rows.get(key)
            if old is not None:
                counted = ("requests", "prompt_tokens", "completion_tokens", "cost_microdollars")
                usage = usage.model_copy(update={n: getattr(old, n) + getattr(usage, n) for n in counted})
            self.rows[key] = usage


class FakeStore:
    """A store with a usage table and counters."""

    def __init__(self, counters: Any, usage: FakeUsage) -> None:
        self.counters = counters
        self.usage = usage
        self.down = False
        self.pause = False

    def transaction(self) -> "FakeStore":
        return self

    reading = transaction

    async def __aenter__(self) -> "FakeStore":
        if self.down:
            raise StoreError("down")
        if self.pause:
            await asyncio.sleep(0)
        return self

    async def __aexit__(self, *_: object) -> None:
        """Nothing to commit."""


def caller(allowance: Allowance | None = None, key_allowance: Allowance | None = None, **fields: Any) -> Caller:
    """A caller with limits of its Tenant and of its key."""
    tenant = Tenant(id="ten_a", name="A", allowance=allowance or Allowance(), **fields)
    key = ApiKey(
        id="key_a",
        tenant_id="ten_a",
        name="k",
        key_hash="h",
        scopes=frozenset({Scope.INFERENCE}),
        allowance=key_allowance or Allowance(),
    )
    return Caller(key=key, tenant=tenant)


def replicas(
    count: int, clock: Clock, usage: FakeUsage | None = None, prices: dict[str, ModelPrice] | None = None
) -> list[LeasedLimits]:
    """Gateways that share counters and a usage table."""
    ledger, usage = Ledger(clock=clock), usage or FakeUsage()
    return [
        LeasedLimits(
            config=HoneConfig(gateway=GatewaySection(prices=prices or {})),
            store=FakeStore(LocalCounters(ledger), usage),  # type: ignore[arg-type]
            metrics=GatewayMetrics(CollectorRegistry()),
            clock=clock,
            unix_clock=lambda: 1_795_000_000.0 + clock(),
        )
        for _ in range(count)
    ]


STEPS = st.lists(
    st.tuples(
        st.integers(0, 3),
        st.sampled_from(["ask", "burst", "burst", "settle", "fail", "wait", "wait", "tell"]),
        st.sampled_from([0.2, 0.9, 1.0, 1.8, 20.0, 57.0, 58.1, 59.0, 60.0, 61.0]),
        st.integers(1, 60),
        st.integers(0, 100),
    ),
    max_size=150,
)


@settings(max_examples=150, deadline=None)
@given(requests=st.integers(0, 100), tokens=st.integers(1, 400), steps=STEPS)
def test_no_window_ever_holds_more_than_the_limit(requests: int, tokens: int, steps: list[Any]) -> None:
    """Four replicas, any interleaving of requests, endings, pauses and housekeeping, at any times."""
    asyncio.run(_play(requests, tokens, steps))


async def _play(requests: int, tokens: int, steps: list[Any]) -> None:
    clock = Clock()
    who = caller(Allowance(requests_per_minute=requests, tokens_per_minute=tokens))
    gates = replicas(4, clock)
    let_in: list[float] = []
    used: list[list[float]] = []
    open_ones: list[deque[Any]] = [deque() for _ in gates]
    for index, what, pause, need, share in steps:
        gate = gates[index]
        if what == "wait":
            clock.seconds += pause
        elif what == "tell":
            await gate.housekeep()
        elif what in ("ask", "burst"):
            for _ in range(need if what == "burst" else 1):
                tokens_needed = 1 if what == "burst" else need
                try:
                    admission = await gate.admit(who, "m", stream=False, tokens=tokens_needed)
                except RateLimited as error:
                    assert error.retry_after_seconds is not None
                    assert error.retry_after_seconds > 0
                    break
                let_in.append(clock())
                used.append([clock(), tokens_needed])
                open_ones[index].append((admission, used[-1]))
        elif open_ones[index]:
            admission, entry = open_ones[index].popleft()
            if what == "settle":
                entry[1] = need = int(entry[1] * share / 100)
                admission.settle(prompt_tokens=need, completion_tokens=0)
            else:
                entry[1] = 0
            admission.release()
            admission.release()
    for start in let_in:
        inside = [at for at in let_in if start <= at < start + WINDOW_SECONDS]
        assert len(inside) <= requests
        assert sum(n for at, n in used if start <= at < start + WINDOW_SECONDS) <= tokens


@settings(max_examples=50, deadline=None)
@given(limit=st.integers(1, 200), order=st.lists(st.integers(0, 3), min_size=4, max_size=4, unique=True))
def test_all_of_a_limit_can_be_used(limit: int, order: list[int]) -> None:
    """Four replicas that ask in turn get exactly the limit, and the whole of it again after the window."""

    async def play() -> None:
        clock = Clock()
        who = caller(Allowance(requests_per_minute=limit))
        gates = replicas(4, clock)
        for _ in range(2):
            admitted = 0
            for turn in range(4 * limit + 8):
                try:
                    (await gates[order[turn % 4]].admit(who, "m", stream=False, tokens=1)).release()
                    admitted += 1
                except RateLimited:
                    continue
            assert admitted == limit
            clock.seconds += 63

    asyncio.run(play())


async def test_a_lease_that_is_used_late_counts_a_whole_window() -> None:
    """What was leased in one second and used in the next is not forgotten a second too early."""
    clock = Clock()
    here, there = replicas(2, clock)
    who = caller(Allowance(requests_per_minute=100))
    let_in = []
    for seconds, gate, most in ((1000.0, here, 30), (1001.9, here, 100), (1060.0, there, 100), (1061.8, there, 100)):
        clock.seconds = seconds
        for _ in range(most):
            try:
                await gate.admit(who, "m", stream=False, tokens=1)
            except RateLimited:
                break
            let_in.append(seconds)
    assert let_in.count(1001.9) == 70
    assert sum(1 for at in let_in if 1001.9 <= at < 1061.9) <= 100


async def test_a_lease_that_nobody_used_goes_back() -> None:
    """A replica that fell silent keeps nothing from the others."""
    clock = Clock()
    here, there = replicas(2, clock)
    who = caller(Allowance(requests_per_minute=100))
    for _ in range(10):
        await here.admit(who, "m", stream=False, tokens=1)
    clock.seconds += 3
    await here.housekeep()
    for _ in range(90):
        await there.admit(who, "m", stream=False, tokens=1)
    with pytest.raises(RateLimited):
        await there.admit(who, "m", stream=False, tokens=1)


async def test_nothing_limited_nothing_said() -> None:
    """Without limits there are no headers and no counters."""
    (gate,) = replicas(1, Clock())
    admission = await gate.admit(caller(), "m", stream=True, tokens=10)
    assert admission.headers == []
    admission.settle(prompt_tokens=1, completion_tokens=1)
    admission.release()


async def test_headers_are_openais() -> None:
    """Only windows that are limited have headers; the tighter of Tenant's and key's is shown."""
    (gate,) = replicas(1, Clock())
    who = caller(Allowance(requests_per_minute=3), Allowance(requests_per_minute=2))
    first = dict((await gate.admit(who, "m", stream=False, tokens=5)).headers)
    assert first == {
        b"x-ratelimit-limit-requests": b"2",
        b"x-ratelimit-remaining-requests": b"1",
        b"x-ratelimit-reset-requests": b"1m2s",
    }
    await gate.admit(who, "m", stream=False, tokens=5)
    with pytest.raises(RateLimited) as caught:
        await gate.admit(who, "m", stream=False, tokens=5)
    error = caught.value
    assert (error.status, error.type, error.code) == (429, "requests", "rate_limit_exceeded")
    headers = dict(error_headers(error))
    assert headers[b"x-ratelimit-remaining-requests"] == b"0"
    assert headers[b"retry-after"] == b"62"


async def test_a_request_above_the_limit_is_told_so() -> None:
    """No waiting would help, so no time is named and SDKs are told not to try again."""
    (gate,) = replicas(1, Clock())
    with pytest.raises(RateLimited, match="too large") as caught:
        await gate.admit(caller(Allowance(tokens_per_minute=10)), "m", stream=False, tokens=11)
    headers = dict(error_headers(caught.value))
    assert b"retry-after" not in headers
    assert headers[b"x-should-retry"] == b"false"
    assert caught.value.type == "tokens"


async def test_streams_are_counted_while_they_are_open() -> None:
    """The limit holds across replicas; a stream that fails gives its place back; other requests need none."""
    clock = Clock()
    here, there = replicas(2, clock)
    who = caller(Allowance(concurrent_streams=2))
    first = await here.admit(who, "m", stream=True, tokens=1)
    await there.admit(who, "m", stream=True, tokens=1)
    await here.admit(who, "m", stream=False, tokens=1)
    with pytest.raises(RateLimited, match="2 streams open"):
        await here.admit(who, "m", stream=True, tokens=1)
    first.release()
    await here.housekeep()
    again = await here.admit(who, "m", stream=True, tokens=1)
    again.settle(prompt_tokens=1, completion_tokens=1)
    with pytest.raises(RateLimited):
        await here.admit(who, "m", stream=True, tokens=1)


async def test_a_killed_replicas_streams_are_freed() -> None:
    """What is not renewed lapses; what is renewed stays."""
    clock = Clock()
    alive, killed = replicas(2, clock)
    who = caller(Allowance(concurrent_streams=2))
    await killed.admit(who, "m", stream=True, tokens=1)
    await alive.admit(who, "m", stream=True, tokens=1)
    for _ in range(7):
        clock.seconds += 5
        await alive.renew()
    assert HOLD_SECONDS < 7 * 5
    await alive.admit(who, "m", stream=True, tokens=1)
    with pytest.raises(RateLimited):
        await alive.admit(who, "m", stream=True, tokens=1)


async def test_a_budget_survives_a_restart() -> None:
    """A new process over the same store goes on where the old one ended; the refusal is OpenAI's."""
    usage = FakeUsage()
    who = caller(Allowance(tokens_per_month=100))
    (old,) = replicas(1, Clock(), usage)
    for _ in range(3):
        admission = await old.admit(who, "m", stream=False, tokens=30)
        admission.settle(prompt_tokens=10, completion_tokens=15)
        admission.release()
    await old.flush()
    assert [(row.requests, row.tokens) for row in usage.rows.values()] == [(3, 75)]
    (new,) = replicas(1, Clock(), usage)
    with pytest.raises(QuotaExceeded) as caught:
        await new.admit(who, "m", stream=False, tokens=26)
    assert (caught.value.type, caught.value.code) == ("insufficient_quota", "insufficient_quota")
    assert dict(error_headers(caught.value))[b"x-should-retry"] == b"false"
    (await new.admit(who, "m", stream=False, tokens=25)).release()


@settings(max_examples=60, deadline=None)
@given(
    budget=st.integers(1, 500),
    steps=st.lists(
        st.tuples(
            st.integers(0, 2),
            st.integers(1, 60),
            st.integers(0, 100),
            st.sampled_from(["", "tell", "flush", "renew"]),
        ),
        max_size=80,
    ),
)
def test_a_budget_is_never_exceeded(budget: int, steps: list[Any]) -> None:
    """However replicas reserve, use and write through; and the store knows every token in the end."""

    async def play() -> None:
        clock, usage, total = Clock(), FakeUsage(), 0
        gates = replicas(3, clock, usage)
        who = caller(Allowance(tokens_per_month=budget))
        for index, need, share, chore in steps:
            clock.seconds += 0.1
            try:
                admission = await gates[index].admit(who, "m", stream=False, tokens=need)
            except QuotaExceeded:
                continue
            total += (used := need * share // 100)
            admission.settle(prompt_tokens=used, completion_tokens=0)
            admission.release()
            if chore:
                await {"tell": gates[index].housekeep, "flush": gates[index].flush, "renew": gates[index].renew}[
                    chore
                ]()
        for gate in gates:
            await gate.stop()
        assert total <= budget
        assert sum(row.tokens for row in usage.rows.values()) == total

    asyncio.run(play())


@settings(max_examples=60, deadline=None)
@given(
    budget=st.integers(0, 500),
    steps=st.lists(st.tuples(st.integers(1, 60), st.integers(0, 100), st.booleans()), max_size=60),
)
def test_one_replica_refuses_exactly_what_does_not_fit(budget: int, steps: list[Any]) -> None:
    """What a request reserved and did not use is free for the next one at once, told to the others or not."""

    async def play() -> None:
        total, who = 0, caller(Allowance(tokens_per_month=budget))
        (gate,) = replicas(1, Clock())
        for need, share, tell in steps:
            try:
                admission = await gate.admit(who, "m", stream=False, tokens=need)
            except QuotaExceeded:
                assert total + need > budget
                continue
            assert total + need <= budget
            total += (used := need * share // 100)
            admission.settle(prompt_tokens=used, completion_tokens=0)
            admission.release()
            if tell:
                await gate.housekeep()

    asyncio.run(play())


@pytest.mark.parametrize(("limit", "told_at_once"), [(2, True), (1000, False)])
async def test_scarce_places_are_told_to_the_others_at_once(limit: int, told_at_once: bool) -> None:
    """Where many are free, the next round tells them all together."""
    (gate,) = replicas(1, Clock())
    who = caller(Allowance(concurrent_streams=limit))
    for _ in range(2):
        (await gate.admit(who, "m", stream=True, tokens=1)).release()
    assert gate._wake.is_set() is told_at_once


async def test_a_month_ends_to_the_second() -> None:
    """A Plan of the old month is not used any more, however fresh it is; what began in it is counted there."""
    clock, usage = Clock(), FakeUsage()
    (gate,) = replicas(1, clock, usage)
    who = caller(Allowance(tokens_per_month=100))
    clock.seconds += month_end(1_795_000_000.0 + clock()) - (1_795_000_000.0 + clock()) - 1.0
    old = await gate.admit(who, "m", stream=False, tokens=100)
    with pytest.raises(QuotaExceeded):
        await gate.admit(who, "m", stream=False, tokens=1)
    clock.seconds += 1.0
    new = await gate.admit(who, "m", stream=False, tokens=100)
    old.settle(prompt_tokens=7, completion_tokens=0)
    new.settle(prompt_tokens=8, completion_tokens=0)
    await gate.flush()
    assert {key[2]: row.tokens for key, row in usage.rows.items()} == {"2026-11": 7, "2026-12": 8}


async def test_tokens_that_come_back_while_a_lease_is_asked_for_stay_in_their_second() -> None:
    """They go to the counters and not into the lease that is on its way."""
    line = Line(counter="c", unit=Unit.TOKENS, owner="tenant", limit=100)
    line.granted(Grant(50, 50, 0.0), Reservation((), True, 7, 2.0), 1000.0)
    line.available -= 20
    line.ask(60, 0, 1000.0)
    line.untake(20, 7)
    line.granted(Grant(60, 0, 0.0), Reservation((), True, 8, 2.0), 1001.0)
    assert line.available == 60
    assert [(change.bucket, change.back) for change in line.changes(renew=False)] == [(7, 20)]


async def test_a_closed_streams_place_is_free_at_once() -> None:
    """The same replica lets the next one in before the others have heard of it."""
    (gate,) = replicas(1, Clock())
    who = caller(Allowance(concurrent_streams=1))
    for _ in range(5):
        (await gate.admit(who, "m", stream=True, tokens=1)).release()


async def test_tokens_that_were_not_used_are_free_at_once() -> None:
    """Also when their lease has ended meanwhile."""
    clock = Clock()
    (gate,) = replicas(1, clock)
    who = caller(Allowance(tokens_per_minute=100))
    admission = await gate.admit(who, "m", stream=False, tokens=100)
    clock.seconds += 5
    admission.settle(prompt_tokens=40, completion_tokens=0)
    admission.release()
    await gate.admit(who, "m", stream=False, tokens=60)


async def test_money_is_counted_by_the_configured_prices() -> None:
    """A dollar budget counts priced models under all their names; others are free."""
    prices = {"coder": ModelPrice(prompt=1.0, completion=10.0)}
    usage = FakeUsage()
    (gate,) = replicas(1, Clock(), usage, prices)
    who = caller(Allowance(dollars_per_month=0.001))
    admission = await gate.admit(who, "coder-fast@3", stream=False, tokens=90)
    admission.settle(prompt_tokens=30, completion_tokens=60)
    admission.release()
    await gate.flush()
    assert [row.cost_microdollars for row in usage.rows.values()] == [630]
    with pytest.raises(QuotaExceeded, match=r"\$0.001"):
        await gate.admit(who, "coder", stream=False, tokens=38)
    (await gate.admit(who, "other", stream=False, tokens=10_000)).release()


async def test_flushes_at_once_write_nothing_twice() -> None:
    """They wait for each other."""
    usage = FakeUsage()
    (gate,) = replicas(1, Clock(), usage)
    store: Any = gate._book._store
    admission = await gate.admit(caller(), "m", stream=False, tokens=10)
    admission.settle(prompt_tokens=4, completion_tokens=6)
    store.pause = True
    await asyncio.gather(*(gate.flush() for _ in range(3)))
    assert [(row.requests, row.tokens) for row in usage.rows.values()] == [(1, 10)]


async def test_the_store_may_be_away() -> None:
    """A budget that cannot be read lets requests in and counts them; they are written later."""
    usage = FakeUsage()
    (gate,) = replicas(1, Clock(), usage)
    store: Any = gate._book._store
    store.down = True
    admission = await gate.admit(caller(Allowance(tokens_per_month=100)), "m", stream=False, tokens=10)
    admission.settle(prompt_tokens=4, completion_tokens=6)
    admission.release()
    await gate.flush()
    assert usage.rows == {}
    store.down = False
    await gate.flush()
    assert [row.tokens for row in usage.rows.values()] == [10]


async def test_models_must_be_allowed_by_tenant_and_key() -> None:
    """A model outside the lists is refused before anything is counted."""
    (gate,) = replicas(1, Clock())
    who = caller(models=("coder", "openai/*"))
    for model in ("coder", "coder-fast@2", "openai/gpt"):
        await gate.admit(who, model, stream=False, tokens=1)
    with pytest.raises(PermissionDenied, match="may not use the model 'base'"):
        await gate.admit(who, "base", stream=False, tokens=1)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0s"), (0.0171, "18ms"), (1, "1s"), (0.9999, "1000ms"), (8.2, "9s"), (360, "6m0s"), (3723, "1h2m3s")],
)
def test_durations_are_written_as_openai_does(seconds: float, text: str) -> None:
    """Rounded up."""
    assert duration(seconds) == text


async def test_a_line_that_is_being_leased_is_not_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """A renewal in the middle of a first request, however long that takes, leaves its limit in the books."""
    clock = Clock()
    (gate,) = replicas(1, clock)
    reserve = gate._sharing.reserve

    async def slowly(wants: Any) -> Reservation:
        reservation = await reserve(wants)
        clock.seconds += 400
        await gate.renew()
        return reservation

    monkeypatch.setattr(gate._sharing, "reserve", slowly)
    who = caller(Allowance(concurrent_streams=2))
    await gate.admit(who, "m", stream=True, tokens=1)
    (line,) = gate._plans["key_a"].lines
    assert line.held == 1 and gate._lines[line.counter] is line


async def test_a_new_line_is_not_idle() -> None:
    """A renewal just after a limit was looked up for the first time keeps it."""
    (gate,) = replicas(1, Clock())
    plan = gate._make_plan(caller(Allowance(requests_per_minute=5)), 1000.0)
    await gate.renew()
    assert [gate._lines.get(line.counter) for line in plan.lines] == list(plan.lines)
