"""The contract of Counters: in memory and in Redis, seen by two replicas."""

import asyncio
import math
import secrets
from collections.abc import AsyncIterator

import pytest

from store.counters import COUNTED_BUCKETS, LEASE_BUCKETS, Ask, Change, CounterKind, Counters
from store.local_counters import Ledger, LocalCounters
from store.redis_counters import RedisCounters

WINDOW, HOLD = CounterKind.WINDOW, CounterKind.HOLD


@pytest.fixture(params=["local", "redis"])
async def pair(request: pytest.FixtureRequest) -> AsyncIterator[tuple[Counters, Counters]]:
    """Two replicas with the same counters."""
    ends: list[Counters] = []
    ledger = Ledger()
    for _ in range(2):
        ends.append(
            LocalCounters(ledger) if request.param == "local" else RedisCounters(request.getfixturevalue("redis_url"))
        )
    yield ends[0], ends[1]
    for end in ends:
        await end.close()


@pytest.fixture
def name() -> str:
    """A counter of this test alone."""
    return f"{{test-{secrets.token_hex(8)}}}"


async def test_a_window_gives_no_more_than_its_limit(pair: tuple[Counters, Counters], name: str) -> None:
    """Two replicas get the limit between them, then a refusal that says when to come back."""
    ask = Ask(name, WINDOW, limit=3, need=1, want=1)
    answers = [await pair[n % 2].reserve([ask]) for n in range(4)]
    assert [answer.granted for answer in answers] == [True, True, True, False]
    assert [answer.grants[0].remaining for answer in answers] == [2, 1, 0, 0]
    assert 0 < answers[0].fresh_seconds <= LEASE_BUCKETS
    assert COUNTED_BUCKETS - 5 < answers[3].grants[0].retry_seconds <= COUNTED_BUCKETS


async def test_two_replicas_that_race_get_exactly_the_limit(pair: tuple[Counters, Counters], name: str) -> None:
    """However the calls fall, no unit is given twice and none is kept back."""
    ask = Ask(name, WINDOW, limit=50, need=1, want=1)
    answers = await asyncio.gather(*(pair[n % 2].reserve([ask]) for n in range(120)))
    assert sum(answer.grants[0].amount for answer in answers) == 50


async def test_more_than_the_need_is_given_only_while_there_is_plenty(
    pair: tuple[Counters, Counters], name: str
) -> None:
    """A lease ahead is at most an eighth of what is free, and nothing near the end."""
    first = await pair[0].reserve([Ask(name, WINDOW, limit=100, need=1, want=50)])
    assert first.grants[0].amount == 1 + 99 // 8
    small = await pair[1].reserve([Ask(name, WINDOW, limit=20, need=1, want=50)])
    assert small.grants[0].amount == 1


async def test_all_or_none(pair: tuple[Counters, Counters], name: str) -> None:
    """One counter without room keeps the others of the call untouched."""
    plenty, none = f"{name}:a", f"{name}:b"
    asks = [Ask(plenty, WINDOW, 10, 4, 4), Ask(none, HOLD, 0, 1, 1)]
    refused = await pair[0].reserve(asks)
    assert not refused.granted
    assert [(grant.amount, grant.remaining) for grant in refused.grants] == [(0, 10), (0, 0)]
    assert (await pair[0].reserve([Ask(plenty, WINDOW, 10, 10, 10)])).granted


async def test_a_need_above_the_limit_is_never_met(pair: tuple[Counters, Counters], name: str) -> None:
    """The wait is infinite."""
    answer = await pair[0].reserve([Ask(name, WINDOW, limit=5, need=6, want=6)])
    assert answer.grants[0].retry_seconds == math.inf


async def test_what_a_window_gets_back_is_free_again(pair: tuple[Counters, Counters], name: str) -> None:
    """A return counts at once, also for the other replica, and within the same call as a new ask."""
    here, there = pair
    lease = await here.reserve([Ask(name, WINDOW, 10, 10, 10)])
    await here.change([Change(name, WINDOW, back=4, bucket=lease.bucket)])
    assert (await there.reserve([Ask(name, WINDOW, 10, 4, 4)])).granted
    again = await here.reserve([Ask(name, WINDOW, 10, 3, 3, back=3, back_bucket=lease.bucket)])
    assert again.granted
    assert not (await there.reserve([Ask(name, WINDOW, 10, 1, 1)])).granted


async def test_buckets_out_of_the_window_take_nothing_back(pair: tuple[Counters, Counters], name: str) -> None:
    """A return that comes too late, or from another clock, changes nothing; use beyond a grant is added."""
    here, _ = pair
    lease = await here.reserve([Ask(name, WINDOW, 10, 6, 6)])
    await here.change([Change(name, WINDOW, back=5, bucket=lease.bucket - COUNTED_BUCKETS)])
    await here.change([Change(name, WINDOW, back=5, bucket=lease.bucket + 1000)])
    await here.change([Change(name, WINDOW, back=-2, bucket=lease.bucket)])
    answer = await here.reserve([Ask(name, WINDOW, 10, 3, 3)])
    assert (answer.granted, answer.grants[0].remaining) == (False, 2)


async def test_holds_are_counted_over_all_replicas(pair: tuple[Counters, Counters], name: str) -> None:
    """What one replica holds the other cannot have, until it is given up."""
    here, there = pair
    ask = Ask(name, HOLD, limit=2, need=1, want=1)
    assert (await here.reserve([ask])).granted
    assert (await there.reserve([ask])).granted
    assert not (await there.reserve([ask])).granted
    await here.change([Change(name, HOLD, held=-1), Change(name, HOLD)])
    assert (await there.reserve([ask])).granted


async def test_use_stays_and_has_a_floor(pair: tuple[Counters, Counters], name: str) -> None:
    """A budget: reservations become use, and what the store knows is the least."""
    here, there = pair
    assert (await here.reserve([Ask(name, HOLD, 100, 40, 40, floor=30)])).grants[0].remaining == 30
    await here.change([Change(name, HOLD, held=-40, used=10)])
    answer = await there.reserve([Ask(name, HOLD, 100, 61, 61, floor=35)])
    assert (answer.granted, answer.grants[0].remaining) == (False, 60)


async def test_a_large_budget_keeps_every_digit(pair: tuple[Counters, Counters], name: str) -> None:
    """Counts up to 2**52 are exact."""
    great = 2**52
    await pair[0].change([Change(name, HOLD, used=great - 1)])
    answer = await pair[1].reserve([Ask(name, HOLD, great, 1, 1)])
    assert (answer.granted, answer.grants[0].remaining) == (True, 0)


async def test_a_reborn_replica_holds_nothing(pair: tuple[Counters, Counters], name: str) -> None:
    """Its old part lapses by itself; giving up what it does not hold takes nothing from it."""
    here, there = pair
    assert (await here.reserve([Ask(name, HOLD, 5, 3, 3)])).granted
    here.reborn()
    await here.change([Change(name, HOLD, held=-3)])
    assert (await there.reserve([Ask(name, HOLD, 5, 3, 3)])).grants[0].remaining == 2


async def test_replicas_are_counted(pair: tuple[Counters, Counters]) -> None:
    """Each that beats is one, until it leaves."""
    here, there = pair
    alone = await here.beat()
    assert await there.beat() == alone + 1
    assert await there.beat() == alone + 1


async def test_no_changes_are_no_call(pair: tuple[Counters, Counters]) -> None:
    """An empty list is fine."""
    await pair[0].change([])
