"""A transaction whose task is cancelled leaves no lock behind that others wait for, and no half of a change."""

import asyncio
import random
from typing import Any

import pytest

from core.noun import now
from store.store import Store
from store.uncut import uncut

ROUNDS = 60


async def change_both(store: Store, owner: str) -> None:
    """Two rows that are always changed together."""
    async with store.transaction() as work:
        await work.leases.acquire("left", owner, now=now(), seconds=-1.0)
        await work.leases.acquire("right", owner, now=now(), seconds=-1.0)


async def owners(store: Store) -> tuple[str, str]:
    """Who changed them last."""
    async with store.reading() as work:
        return (await work.leases.get("left")).owner, (await work.leases.get("right")).owner


async def test_cancelled_writers_hold_up_nobody(fresh_sqlite_url: str, open_store: Any) -> None:
    """Wherever writers of two processes are cut off, the next one writes, and what they changed is whole or not."""
    stores = (await open_store(fresh_sqlite_url), await open_store(fresh_sqlite_url))
    chance = random.Random(0)
    for number in range(ROUNDS):
        writers = [asyncio.create_task(change_both(stores[place % 2], f"cut-{number}-{place}")) for place in range(4)]
        await asyncio.sleep(chance.random() * 0.006)
        for writer in writers:
            writer.cancel()
        ended = await asyncio.gather(*writers, return_exceptions=True)
        assert all(one is None or isinstance(one, asyncio.CancelledError) for one in ended)
        left, right = await owners(stores[0]) if number else ("", "")
        assert left == right
        # A lock that was left behind would make this one fail once it has waited long enough.
        await change_both(stores[number % 2], f"whole-{number}")
        assert await owners(stores[1]) == (f"whole-{number}",) * 2


async def test_what_is_uncut_ends_before_its_caller_does() -> None:
    """A cancelled caller learns of it when the work is over; its result is undone, since nobody has it."""
    began, may_end, said = asyncio.Event(), asyncio.Event(), []

    async def work() -> str:
        began.set()
        await may_end.wait()
        said.append("worked")
        return "result"

    async def undo(result: str) -> None:
        said.append(f"undid {result}")

    caller = asyncio.create_task(uncut(work(), undo=undo))
    await began.wait()
    caller.cancel()
    await asyncio.sleep(0)
    caller.cancel()
    await asyncio.sleep(0)
    assert not caller.done()
    may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert said == ["worked", "undid result"]


async def test_uncut_work_fails_as_it_would_alone() -> None:
    """Without a cancellation the exception of the work is the caller's."""

    async def fail() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await uncut(fail())
