"""Limits of several gateways over one real Redis and a real store: exact together, local without Redis, and back."""

import asyncio
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from redis.asyncio import Redis

from core.access import Allowance, ApiKey, Scope, Tenant
from core.config.schema import HoneConfig
from core.errors import QuotaExceeded, RateLimited
from core.usage import month_of
from gateway.auth import Caller
from gateway.limits.admission import Admitted
from gateway.limits.leased import LeasedLimits
from gateway.metrics import GatewayMetrics
from store.counters import COUNTED_BUCKETS, Ask, CounterKind
from store.redis_counters import RedisCounters
from store.store import Store
from tests.conftest import OpenStore
from tests.services import RedisServer

MakeLimits = Callable[..., Awaitable[LeasedLimits]]


@pytest.fixture
def redis() -> Iterator[RedisServer]:
    """A Redis of this test alone."""
    server = RedisServer()
    server.start()
    yield server
    server.remove()


@pytest.fixture
async def make_limits(
    redis: RedisServer, fresh_sqlite_url: str, open_store: OpenStore, make_config: Callable[..., HoneConfig]
) -> AsyncIterator[MakeLimits]:
    """Starts the limits of one more gateway."""
    running: list[LeasedLimits] = []

    async def make() -> LeasedLimits:
        store: Store = await open_store(fresh_sqlite_url, {"store.redis_url": redis.url})
        limits = LeasedLimits(
            config=make_config({"gateway.usage_flush_seconds": 0.2}),
            store=store,
            metrics=GatewayMetrics(CollectorRegistry()),
        )
        await limits.start()
        running.append(limits)
        return limits

    yield make
    for limits in running:
        await limits.stop()


def caller(**allowance: Any) -> Caller:
    """A caller whose Tenant has this allowance."""
    key = ApiKey(id="key_a", tenant_id="ten_a", name="k", key_hash="h", scopes=frozenset({Scope.INFERENCE}))
    return Caller(key=key, tenant=Tenant(id="ten_a", name="A", allowance=Allowance(**allowance)))


async def admitted(gates: list[LeasedLimits], who: Caller, attempts: int, *, stream: bool = False) -> int:
    """How many of so many simultaneous requests, dealt out to the gateways, are let in."""
    return len(await let_in(gates, who, attempts, stream=stream))


async def let_in(gates: list[LeasedLimits], who: Caller, attempts: int, *, stream: bool = False) -> list[Any]:
    """The Admissions of those that are let in."""

    async def one(gate: LeasedLimits) -> Any:
        try:
            return await gate.admit(who, "m", stream=stream, tokens=10)
        except RateLimited:
            return None

    answers = await asyncio.gather(*(one(gates[n % len(gates)]) for n in range(attempts)))
    return [answer for answer in answers if answer is not None]


def count(gate: LeasedLimits, metric: str) -> float:
    """A sample of a gateway's metrics."""
    return gate._metrics.registry.get_sample_value(metric) or 0.0


async def until(condition: Callable[[], bool]) -> None:
    """Wait for something that must come."""
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.02)


@pytest.mark.parametrize("limit", [1, 3, 57, 1000])
async def test_four_gateways_admit_exactly_the_limit(make_limits: MakeLimits, limit: int) -> None:
    """Whatever the interleaving, no request more and none less, although each gateway leases ahead."""
    gates = [await make_limits() for _ in range(4)]
    assert await admitted(gates, caller(requests_per_minute=limit), 4 * limit + 40) == limit


async def test_tokens_are_shared_too(make_limits: MakeLimits) -> None:
    """The tokens of a minute, with what was not used given back to all."""
    gates = [await make_limits() for _ in range(4)]
    who = caller(tokens_per_minute=1000)
    first = await let_in(gates, who, 200)
    assert len(first) == 100
    for admission in first:
        admission.settle(prompt_tokens=3, completion_tokens=2)
        admission.release()
    await asyncio.gather(*(gate.flush() for gate in gates))
    assert await admitted(gates, who, 200) == 50


async def test_streams_are_shared_and_freed_when_a_request_fails(make_limits: MakeLimits) -> None:
    """Places are given back without an answer having been settled."""
    gates = [await make_limits() for _ in range(4)]
    who = caller(concurrent_streams=5)
    open_streams = await let_in(gates, who, 40, stream=True)
    assert len(open_streams) == 5
    for admission in open_streams:
        admission.release()
    for gate in gates:
        await gate.flush()
    await asyncio.sleep(0.3)
    assert await admitted(gates, who, 40, stream=True) == 5


async def test_without_redis_limits_are_local_and_come_back(make_limits: MakeLimits, redis: RedisServer) -> None:
    """Each gateway then admits its share, which is counted; when Redis is back they share again, open streams too."""
    gates = [await make_limits() for _ in range(2)]
    await until(lambda: all(count(gate, "hone_limits_alone") == 0 for gate in gates))
    for gate in gates:
        await gate.renew()
    who = caller(requests_per_minute=100, concurrent_streams=4)
    kept = await let_in(gates, who, 2, stream=True)
    redis.kill()
    assert len(await let_in(gates[:1], who, 10, stream=True)) == 1
    # Beside its share each gateway may use up what Redis had granted it.
    assert 49 <= await admitted(gates[:1], who, 80) <= 51
    assert 50 <= await admitted(gates[1:], who, 80) <= 52
    assert all(count(gate, "hone_limits_alone") == 1 for gate in gates)
    assert all(count(gate, "hone_limits_degraded_total") > 0 for gate in gates)
    redis.start()
    await until(lambda: all(count(gate, "hone_limits_alone") == 0 for gate in gates))
    assert await admitted(gates, caller(requests_per_minute=30), 100) == 30
    again = await let_in(gates, caller(concurrent_streams=4), 10, stream=True)
    assert len(again) == 1
    kept[0].release()
    await asyncio.gather(*(gate.flush() for gate in gates))
    await asyncio.sleep(0.3)
    assert await admitted(gates, caller(concurrent_streams=4), 10, stream=True) == 1


async def test_a_budget_survives_restarts_of_the_gateway_and_of_redis(
    make_limits: MakeLimits, redis: RedisServer, fresh_sqlite_url: str, open_store: OpenStore
) -> None:
    """The store is the truth: an empty Redis and a new gateway refuse what is over the budget all the same."""
    who = caller(tokens_per_month=100)
    old = await make_limits()
    admission = await old.admit(who, "m", stream=False, tokens=90)
    admission.settle(prompt_tokens=50, completion_tokens=35)
    admission.release()
    await old.stop()
    redis.kill()
    redis.start()
    new = await make_limits()
    with pytest.raises(QuotaExceeded):
        await new.admit(who, "m", stream=False, tokens=16)
    (await new.admit(who, "m", stream=False, tokens=15)).release()
    store = await open_store(fresh_sqlite_url)
    async with store.reading() as work:
        (usage,) = await work.usage.list("ten_a")
    assert (usage.requests, usage.prompt_tokens, usage.completion_tokens) == (1, 50, 35)
    assert usage.month == month_of(time.time())


async def test_a_client_that_leaves_while_it_waits_keeps_nothing(make_limits: MakeLimits) -> None:
    """Cancelled at any point of its admission, a request holds no stream and no tokens afterwards."""
    gates = [await make_limits() for _ in range(2)]
    who = caller(concurrent_streams=3, tokens_per_month=10_000)
    (await gates[0].admit(who, "m", stream=True, tokens=10)).release()
    for steps in range(12):
        # What was free before is told, so that the next request has to ask Redis.
        await gates[0].flush()
        waiting = asyncio.create_task(gates[0].admit(who, "m", stream=True, tokens=10))
        for _ in range(steps):
            await asyncio.sleep(0)
        waiting.cancel()
        (answer,) = await asyncio.gather(waiting, return_exceptions=True)
        if isinstance(answer, Admitted):
            answer.release()
    await asyncio.sleep(0.2)
    for gate in gates:
        await gate.flush()
    await asyncio.sleep(0.7)
    assert await admitted(gates[1:], who, 10, stream=True) == 3


async def test_a_redis_that_hangs_keeps_no_request_waiting(make_limits: MakeLimits, redis: RedisServer) -> None:
    """A server that takes connections and never answers counts as gone."""
    gate = await make_limits()
    who = caller(requests_per_minute=100)
    await gate.admit(who, "m", stream=False, tokens=1)
    assert redis._process is not None
    redis._process.send_signal(signal.SIGSTOP)
    try:
        assert await admitted([gate], who, 50) == 50
        assert count(gate, "hone_limits_alone") == 1
    finally:
        redis._process.send_signal(signal.SIGCONT)
    await until(lambda: count(gate, "hone_limits_alone") == 0)


async def test_redis_forgets_what_has_lapsed(redis: RedisServer) -> None:
    """Parts of dead replicas and buckets out of the window count no more and are removed; keys do not stay."""
    counters = RedisCounters(redis.url)
    raw = Redis.from_url(redis.url)
    await raw.hset("hone:limits:{a}:hold", "rep_dead", "5:1000")
    await raw.hset("hone:limits:{a}:window", str(int(time.time()) - COUNTED_BUCKETS), "5")
    asks = [Ask("{a}:hold", CounterKind.HOLD, 5, 5, 5), Ask("{a}:window", CounterKind.WINDOW, 5, 5, 5)]
    assert (await counters.reserve(asks)).granted
    assert [await raw.hlen(f"hone:limits:{{a}}:{name}") for name in ("hold", "window")] == [1, 1]
    assert all([await raw.ttl(f"hone:limits:{{a}}:{name}") > 0 for name in ("hold", "window")])
    await counters.close()
    await raw.aclose()
