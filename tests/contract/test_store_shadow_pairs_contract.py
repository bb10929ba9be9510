"""The contract of the repository of ShadowPairs, on SQLite and on PostgreSQL."""

import asyncio

import pytest

from core.errors import Conflict, NotFound
from core.experiment import Arm, Experiment
from core.shadow import ShadowPair, ShadowStatus
from store.store import Store

ARMS = (Arm(name="primary", version=1, share=1.0), Arm(name="candidate", version=2, share=0.0))


def pair(number: int, **fields: object) -> ShadowPair:
    """A pair of the Experiment ``exp_a``."""
    values = {
        "id": f"sp_{number}",
        "experiment_id": "exp_a",
        "policy": "coder",
        "turn_id": f"turn_{number}",
        "episode_id": f"ep_{number}",
        "status": ShadowStatus.SCORED,
        "primary_arm": "primary",
        "candidate_arm": "candidate",
        "primary_score": 0.0,
        "candidate_score": 1.0,
        "candidate_tokens": 5,
    }
    return ShadowPair(**(values | fields))


async def begin(store: Store) -> None:
    """Two Experiments."""
    async with store.transaction() as work:
        for name in ("exp_a", "exp_b"):
            await work.experiments.add(Experiment(id=name, policy="coder", kind="shadow", arms=ARMS, salt="s"))


async def test_pairs_come_in_the_order_in_which_they_were_stored(store: Store) -> None:
    """Page by page every one once, whatever their times and ids; another Experiment's are not among them."""
    await begin(store)
    async with store.transaction() as work:
        for number in (3, 1, 2):
            await work.shadow_pairs.add(pair(number, created_at=float(number)))
        await work.shadow_pairs.add(pair(9, experiment_id="exp_b"))
        with pytest.raises(Conflict):
            await work.shadow_pairs.add(pair(3))
        assert not await work.shadow_pairs.add_new(pair(3, candidate_tokens=99))
    async with store.reading() as work:
        page, cursor = await work.shadow_pairs.after("exp_a", None, 2)
        assert [one.id for one in page] == ["sp_3", "sp_1"]
        assert page[0] == pair(3, created_at=3.0)
        page, cursor = await work.shadow_pairs.after("exp_a", cursor, 2)
        assert [one.id for one in page] == ["sp_2"]
        assert await work.shadow_pairs.after("exp_a", cursor) == ([], cursor)
    async with store.transaction() as work:
        assert await work.shadow_pairs.add_new(pair(4, created_at=0.5))
    async with store.reading() as work:
        page, _ = await work.shadow_pairs.after("exp_a", cursor)
    assert [one.id for one in page] == ["sp_4"]


async def test_writers_at_once_hide_no_pair_behind_the_cursor(store: Store) -> None:
    """Whoever follows the cursor while several transactions write sees every pair exactly once."""
    await begin(store)

    async def write(first: int) -> None:
        for number in range(first, first + 5):
            async with store.transaction() as work:
                await work.shadow_pairs.add(pair(number))
                await work.shadow_pairs.add(pair(number + 1000))

    writers = asyncio.gather(*(write(first * 10) for first in range(4)))
    seen: list[str] = []
    cursor: int | None = None
    while not writers.done() or cursor is None:
        await asyncio.sleep(0)
        async with store.reading() as work:
            page, cursor = await work.shadow_pairs.after("exp_a", cursor, 7)
        seen += [one.id for one in page]
    await writers
    async with store.reading() as work:
        while len(page := (await work.shadow_pairs.after("exp_a", cursor, 7))[0]):
            seen += [one.id for one in page]
            _, cursor = await work.shadow_pairs.after("exp_a", cursor, 7)
    assert len(seen) == len(set(seen)) == 40


async def test_a_late_score_is_read_after_all_others(store: Store) -> None:
    """It replaces the pair, and comes once more to who has read on; an unknown pair is NotFound."""
    await begin(store)
    async with store.transaction() as work:
        await work.shadow_pairs.add(pair(1, status=ShadowStatus.UNSCORED, primary_score=None, candidate_score=None))
        await work.shadow_pairs.add(pair(2))
        _, cursor = await work.shadow_pairs.after("exp_a")
        await work.shadow_pairs.update(pair(1, judged_by="judge/1"))
        with pytest.raises(NotFound):
            await work.shadow_pairs.update(pair(7))
    async with store.reading() as work:
        page, _ = await work.shadow_pairs.after("exp_a", cursor)
        assert [(one.id, one.difference) for one in page] == [("sp_1", 1.0)]
        assert (await work.shadow_pairs.get("sp_1")).judged_by == "judge/1"
        assert await work.shadow_pairs.counts("exp_a") == {"scored": 2}


async def test_counts_say_what_was_left_out_and_why(store: Store) -> None:
    """Skips are counts that add up, and no rows; what was mirrored is what the budget is spent on."""
    await begin(store)
    async with store.transaction() as work:
        await work.shadow_pairs.add(pair(1))
        await work.shadow_pairs.add(pair(2, status=ShadowStatus.FAILED, candidate_score=None, candidate_tokens=0))
        await work.shadow_pairs.add(pair(3, status=ShadowStatus.SKIPPED, skipped_because="busy", candidate_tokens=0))
        await work.shadow_pairs.skip("exp_a", {"not_sampled": 3, "busy": 1})
        await work.shadow_pairs.skip("exp_a", {"not_sampled": 2})
        await work.shadow_pairs.skip("exp_b", {"not_sampled": 1})
        await work.shadow_pairs.skip("exp_b", {})
    async with store.reading() as work:
        assert await work.shadow_pairs.counts("exp_a") == {
            "scored": 1,
            "failed": 1,
            "skipped": 7,
            "skipped:busy": 2,
            "skipped:not_sampled": 5,
        }
        assert await work.shadow_pairs.counts("exp_b") == {"skipped": 1, "skipped:not_sampled": 1}
        assert await work.shadow_pairs.spent("exp_a") == (2, 5)
        assert await work.shadow_pairs.spent("exp_b") == (0, 0)


async def test_pairs_of_an_erased_episode_are_gone_and_their_numbers_never_come_again(store: Store) -> None:
    """Erasure finds them by their Episode; a pair that comes afterwards is not hidden behind the cursor."""
    await begin(store)
    async with store.transaction() as work:
        for number in (1, 2):
            await work.shadow_pairs.add(pair(number))
        _, cursor = await work.shadow_pairs.after("exp_a")
    async with store.transaction() as work:
        counts, _ = await work.erasure.episode("ten_a", "ep_2")
        assert counts["shadow_pairs"] == 1
        await work.shadow_pairs.add(pair(3))
    async with store.reading() as work:
        page, _ = await work.shadow_pairs.after("exp_a", cursor)
        assert [one.id for one in page] == ["sp_3"]
        with pytest.raises(NotFound):
            await work.shadow_pairs.get("sp_2")
