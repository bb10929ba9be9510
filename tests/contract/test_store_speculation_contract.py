"""What serving writes down of fast replicas, and how it reads recorded Turns; on every database."""

from core.message import Usage
from core.sameness import Difference, SamenessCheck
from core.turn import SpeculationCounts, Timing, Turn
from core.variant import Variant
from store.store import Store
from tests import nouns


def check(number: int, fast_id: str = "dep_fast", base: str = "smol") -> SamenessCheck:
    difference = Difference(prompt=0, position=3, standard_token=5, fast_token=None, gap=None, near_tie=False)
    return SamenessCheck(
        id=f"same_{fast_id}_{number:02d}",
        base=base,
        policy="coder",
        version=1,
        standard_id="dep_standard",
        fast_id=fast_id,
        prompts=2,
        differences=(difference,),
        same=False,
        reason="1 of 2 greedy answers differ",
        created_at=float(number),
    )


async def test_the_newest_sameness_checks_of_each_replica_are_kept(store: Store) -> None:
    """Checks come back whole and newest first; older ones than the bound go, of the same replica only."""
    async with store.transaction() as work:
        await work.sameness.add(check(0, "dep_other"), keep=3)
        for number in range(5):
            await work.sameness.add(check(number), keep=3)
    async with store.reading() as work:
        assert await work.sameness.list(fast_id="dep_fast") == [check(4), check(3), check(2)]
        assert await work.sameness.list(base="smol", limit=2) == [check(4), check(3)]
        assert await work.sameness.list(base="other") == []
        assert await work.sameness.list(fast_id="dep_other") == [check(0, "dep_other")]


async def test_figures_are_those_of_recent_episodes(store: Store) -> None:
    """Each Turn with sampled tokens gives its figures, with its Episode's Domain; older Episodes give none."""
    counts = SpeculationCounts(drafted=12, accepted=7, steps=4, accepted_at=(4, 2, 1))
    timing = Timing(started_at=0.0, first_token_seconds=0.5, total_seconds=2.5)
    usage = Usage(prompt_tokens=3, completion_tokens=3)
    old, new = nouns.episode(created_at=100.0), nouns.episode(created_at=200.0, domain="code")
    async with store.transaction() as work:
        for episode in (old, new):
            await work.episodes.add(episode)
        await work.turns.add_many(
            [
                nouns.turn(episode_id=old.id, usage=usage),
                nouns.turn(episode_id=old.id, index=1),
                nouns.turn(episode_id=new.id, variant=Variant.FAST, usage=usage, speculation=counts, timing=timing),
            ]
        )
    async with store.reading() as work:
        assert len(await work.speculated.figures(since=0.0)) == 2
        [found] = await work.speculated.figures(since=150.0, policy=new.policy)
        assert await work.speculated.figures(since=150.0, policy="absent") == []
    assert (found.domain, found.variant, found.seconds) == ("code", Variant.FAST, 2.0)
    assert (found.drafted, found.accepted, found.steps, found.accepted_at) == (12, 7, 4, (4, 2, 1))


async def test_only_consented_exact_turns_are_prompts(store: Store) -> None:
    """Prompts for comparisons come from Turns whose tokens may be used, with their ids as recorded."""
    episode = nouns.episode()
    turns: list[Turn] = [
        nouns.turn(episode_id=episode.id, index=0, trainable=True),
        nouns.turn(episode_id=episode.id, index=1, trainable=False),
        nouns.turn(episode_id=episode.id, index=2, trainable=True, exact=False),
    ]
    async with store.transaction() as work:
        await work.episodes.add(episode)
        await work.turns.add_many(turns)
    async with store.reading() as work:
        assert await work.speculated.consented(policy=episode.policy, limit=10) == [turns[0]]
        assert await work.speculated.consented(policy="absent", limit=10) == []
