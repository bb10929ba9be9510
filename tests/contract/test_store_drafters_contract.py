"""The contract of the repository of Drafters, on SQLite and on PostgreSQL."""

import asyncio

import pytest

from core.drafter import DraftCounts, Drafter, DrafterStatus, DrafterTrial
from core.errors import Conflict, InvalidTransition, NotFound
from store.store import Store


def drafter(number: int = 1, **fields: object) -> Drafter:
    """A candidate on the Base ``smol``."""
    values = {
        "id": f"drf_{number}",
        "base": "smol",
        "path": f"/d/{number}",
        "number": number,
        "policy": "coder",
        "created_at": 0.0,
    }
    return Drafter(**(values | fields))


async def test_a_drafter_round_trips_with_its_trial(store: Store) -> None:
    """It comes back as it went in; an unknown id is NotFound."""
    counts = DraftCounts(drafts=3, draft_tokens=9, accepted_tokens=4, busy_seconds=1.5)
    one = drafter(trial=DrafterTrial(deployment_id="dep_a", before=counts), metrics={"acceptance": 0.5})
    async with store.transaction() as work:
        await work.drafters.add(one)
    async with store.reading() as work:
        assert await work.drafters.get(one.id) == one
        with pytest.raises(NotFound):
            await work.drafters.get("drf_absent")


async def test_drafters_are_listed_by_base_policy_and_status(store: Store) -> None:
    """In order of number, whatever order they were added in."""
    live = drafter(3, status=DrafterStatus.LIVE)
    base_own = drafter(2, policy=None)
    elsewhere = drafter(1, id="drf_other", base="other")
    async with store.transaction() as work:
        for one in (live, base_own, elsewhere, drafter(1)):
            await work.drafters.add(one)
        assert await work.drafters.list("smol") == [drafter(1), base_own, live]
        assert await work.drafters.list("smol", policy="coder") == [drafter(1), live]
        assert await work.drafters.list("smol", statuses=[DrafterStatus.LIVE]) == [live]
        assert await work.drafters.list(statuses=[DrafterStatus.CANDIDATE]) == [elsewhere, drafter(1), base_own]
        assert await work.drafters.list("absent") == []


async def test_numbers_count_up_by_base_and_are_given_once(store: Store) -> None:
    """Minters at the same time get different numbers; a taken id or number is a Conflict."""

    async def mint(index: int, base: str) -> int:
        async with store.transaction() as work:
            return (await work.drafters.mint(drafter(id=f"drf_{base}_{index}", base=base))).number

    numbers = await asyncio.gather(*(mint(index, "smol") for index in range(6)))
    assert sorted(numbers) == [1, 2, 3, 4, 5, 6]
    assert await mint(0, "other") == 1
    for taken in (drafter(id="drf_smol_0", number=9), drafter(id="drf_new", number=3)):
        with pytest.raises(Conflict):
            async with store.transaction() as work:
                await work.drafters.add(taken)
    with pytest.raises(Conflict):
        async with store.transaction() as work:
            await work.drafters.mint(drafter(id="drf_smol_0"))


async def test_an_update_keeps_to_the_table(store: Store) -> None:
    """A candidate goes live, a rejected one never does; an unknown one is NotFound."""
    async with store.transaction() as work:
        await work.drafters.add(drafter())
        await work.drafters.update(drafter(status=DrafterStatus.LIVE, acceptance=0.6))
        assert (await work.drafters.get("drf_1")).acceptance == 0.6
        await work.drafters.add(drafter(2, status=DrafterStatus.REJECTED))
        with pytest.raises(InvalidTransition):
            await work.drafters.update(drafter(2, status=DrafterStatus.LIVE))
        with pytest.raises(NotFound):
            await work.drafters.update(drafter(7))
