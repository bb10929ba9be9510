"""The contract of Leases and Leadership, on SQLite and on PostgreSQL."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from core.errors import LeaseLost, NotFound, StoreError
from core.lease import Lease
from core.noun import now
from core.policy import Base
from store.leadership import Leadership, owner_name
from store.store import Store

NAME = "fleet:smol"
PATIENCE = 30.0


async def acquire(store: Store, owner: str, at: float, seconds: float = 10.0) -> Lease | None:
    async with store.transaction() as work:
        return await work.leases.acquire(NAME, owner, now=at, seconds=seconds)


async def held(store: Store, owner: str, at: float) -> Lease:
    lease = await acquire(store, owner, at)
    assert lease is not None
    return lease


async def test_a_lease_is_held_by_one_until_it_runs_out(store: Store) -> None:
    """Another owner gets it only after its time, under a higher token."""
    with pytest.raises(NotFound):
        async with store.reading() as work:
            await work.leases.get(NAME)
    first = await held(store, "a", 100.0)
    assert (first.owner, first.token, first.until) == ("a", 1, 110.0)
    assert await acquire(store, "b", 109.9) is None
    second = await held(store, "b", 110.0)
    assert (second.owner, second.token) == ("b", 2)
    async with store.reading() as work:
        assert await work.leases.get(NAME) == second


async def test_the_owner_that_comes_back_gets_a_new_token(store: Store) -> None:
    """A process of the same name takes its own lease at once, and what it did before counts no more."""
    first = await held(store, "a", 100.0)
    second = await held(store, "a", 101.0)
    assert second.token == first.token + 1
    with pytest.raises(LeaseLost):
        async with store.transaction() as work:
            await work.leases.fence(first)


async def test_renewing_prolongs_and_is_refused_once_lost(store: Store) -> None:
    """A lease that ran out is renewed as long as nobody took it; afterwards nothing is done in its name."""
    first = await held(store, "a", 100.0)
    async with store.transaction() as work:
        renewed = await work.leases.renew(first, now=120.0, seconds=10.0)
    assert (renewed.token, renewed.until) == (first.token, 130.0)
    await held(store, "b", 130.0)
    for deed in ("renew", "fence"):
        with pytest.raises(LeaseLost):
            async with store.transaction() as work:
                if deed == "renew":
                    await work.leases.renew(renewed, now=131.0, seconds=10.0)
                else:
                    await work.leases.fence(renewed)


async def test_a_released_lease_is_free_at_once(store: Store) -> None:
    """The token goes on growing; releasing what was lost changes nothing for the one who has it."""
    first = await held(store, "a", 100.0)
    async with store.transaction() as work:
        await work.leases.release(first)
    second = await held(store, "b", 100.5)
    assert second.token == first.token + 1
    async with store.transaction() as work:
        await work.leases.release(first)
    assert await acquire(store, "c", 100.6) is None


async def test_of_many_at_once_one_wins(database_url: str, open_store: Callable) -> None:
    """However many processes ask together, a lease has one owner."""
    stores = [await open_store(database_url) for _ in range(4)]
    asked = (acquire(stores[number % 4], f"owner-{number}", 100.0) for number in range(16))
    won = [lease for lease in await asyncio.gather(*asked) if lease is not None]
    assert len(won) == 1


async def test_a_fenced_transaction_ends_before_the_lease_is_taken(database_url: str, open_store: Callable) -> None:
    """Nobody leads while the leader before is still committing."""
    one, two = await open_store(database_url), await open_store(database_url)
    lease = await held(one, "a", 100.0)
    order: list[str] = []

    async def take() -> None:
        await held(two, "b", 200.0)
        order.append("taken")

    async with one.transaction() as work:
        await work.leases.fence(lease)
        taking = asyncio.create_task(take())
        await asyncio.sleep(0.3)
        order.append("committed")
    await taking
    assert order == ["committed", "taken"]


@asynccontextmanager
async def claim(store: Store, seconds: float, *, ahead: float = 0.0) -> AsyncIterator[Leadership]:
    """A claim to lead, given up at the end; ``ahead``: by how much its clock is."""
    leadership = Leadership(store=store, name=NAME, owner=owner_name(), seconds=seconds, clock=lambda: now() + ahead)
    yield leadership
    await leadership.release()


async def test_one_leads_and_the_other_follows(store: Store) -> None:
    """A second claim waits while the first is renewed, for longer than a lease, and follows when it is released."""
    async with claim(store, 0.9) as first, claim(store, 0.9) as second, asyncio.timeout(PATIENCE):
        await first.acquire()
        waiting = asyncio.create_task(second.acquire())
        await asyncio.sleep(2.0)
        assert first.leads and not second.leads and not waiting.done()
        await first.release()
        await waiting
        assert second.leads and not first.leads


async def test_a_leader_that_was_overtaken_knows_and_writes_nothing(store: Store) -> None:
    """Its next fenced write is refused as a whole, and it is told that it leads no more."""
    async with claim(store, 30.0) as first, claim(store, 30.0, ahead=60.0) as second, asyncio.timeout(PATIENCE):
        await first.acquire()
        await second.acquire()
        with pytest.raises(LeaseLost):
            async with store.transaction() as work:
                await work.bases.put(Base(name="smol", path="/a", fingerprint="1"))
                await first.fence(work)
        await first.lost()
        assert not first.leads and second.leads
        async with store.reading() as work:
            assert await work.bases.list() == []


async def test_a_leader_without_a_database_counts_itself_out(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """When it cannot renew in time it says so by itself, and leads again once the database is back."""
    async with claim(store, 0.6) as leadership, asyncio.timeout(PATIENCE):
        first = await leadership.acquire()

        @asynccontextmanager
        async def away() -> AsyncIterator[None]:
            raise StoreError("the database is away")
            yield

        with monkeypatch.context() as patch:
            patch.setattr(store, "transaction", away)
            await leadership.lost()
            assert not leadership.leads
        second = await leadership.acquire()
        assert leadership.leads and second.token == first.token + 1
