"""The contract of what learning from live traffic reads and writes, on SQLite and on PostgreSQL."""

import pytest

from core import ids
from core.config.learner import LearnerSection
from core.config.learner_live import LiveSection
from core.errors import InvalidTransition, NotFound
from core.feedback import Feedback, FeedbackKind
from core.mined_task import MinedStatus, MinedTask
from core.noun import now
from core.policy import Base, Policy, PolicySpan, Provenance
from core.run import TrainingRun
from core.verdict import Reward
from learner.live.feed import LiveFeed
from learner.live.intake import LiveBatch
from sandbox.mining.miner import MiningRefusal, decide, mine
from store.store import Store
from tests import nouns

POLICY = "coder"
LIVE = LiveSection(episodes_per_step=4, min_episodes=2, settle_seconds=0.0, max_staleness=9)


def feedback(episode_id: str, at: float, **fields: object) -> Feedback:
    values = {
        "id": ids.new_id(ids.FEEDBACK),
        "tenant_id": "ten_a",
        "key_id": "key_a",
        "episode_id": episode_id,
        "name": "thumbs_up",
        "kind": FeedbackKind.BOOLEAN,
        "value": True,
        "training_granted": True,
        "created_at": at,
    }
    return Feedback(**(values | fields))


def mined(question: str, *, digest: str, **fields: object) -> MinedTask:
    task = nouns.task(question, metadata={"episode_id": "ep_a"})
    values = {
        "id": task.id,
        "tenant_id": "ten_a",
        "episode_id": "ep_a",
        "digest": digest,
        "judged_by": "answer",
        "task": task,
    }
    return MinedTask(**(values | fields))


async def test_feedback_is_found_by_episode_and_by_age(store: Store) -> None:
    """Episodes with Feedback after a time, the newest said first, each once; and all Feedback of many Episodes."""
    async with store.transaction() as work:
        for episode_id, at in (("ep_a", 1.0), ("ep_b", 2.0), ("ep_a", 3.0), ("ep_c", 4.0)):
            await work.feedback.add(feedback(episode_id, at))
    async with store.reading() as work:
        assert await work.feedback.episodes_since(1.5, limit=10) == ["ep_c", "ep_a", "ep_b"]
        assert await work.feedback.episodes_since(0.0, limit=2) == ["ep_c", "ep_a"]
        found = await work.feedback.on_episodes(["ep_a", "ep_b", "ep_x"])
    assert {name: [one.created_at for one in said] for name, said in found.items()} == {
        "ep_a": [1.0, 3.0],
        "ep_b": [2.0],
    }


async def test_episodes_are_read_together(store: Store) -> None:
    """Those that exist, whatever else was asked for."""
    async with store.transaction() as work:
        for name in ("ep_b", "ep_a"):
            await work.episodes.add(nouns.episode(id=name))
    async with store.reading() as work:
        found = await work.episodes.get_many(["ep_x", "ep_b", "ep_a"])
        assert await work.episodes.get_many([]) == []
    assert [one.id for one in found] == ["ep_a", "ep_b"]


async def test_a_tenant_has_each_proposal_once(store: Store) -> None:
    """A second one with the same digest is dropped; another tenant's is kept."""
    one = mined("a", digest="d")
    async with store.transaction() as work:
        assert await work.mined.add_many([one]) == 1
        assert await work.mined.add_many([one, mined("b", digest="d")]) == 0
        assert await work.mined.add_many([mined("c", digest="d", tenant_id="ten_b")]) == 1
    async with store.reading() as work:
        assert await work.mined.get(one.id) == one
        assert len(await work.mined.list(MinedStatus.PROPOSED)) == 2
        assert await work.mined.mined_from(["ep_a", "ep_x"]) == {"ep_a"}
        with pytest.raises(NotFound):
            await work.mined.get("task_x")


async def test_a_decision_is_final_and_accepting_makes_the_task(store: Store) -> None:
    """Accepted: the Task and, where it is new, its Domain are there; rejected: not; either way it is decided."""
    yes, no = mined("a", digest="1"), mined("b", digest="2")
    async with store.transaction() as work:
        await work.mined.add_many([yes, no])
        await decide(work, yes.id, accept=True, by="operator")
        decided = await decide(work, no.id, accept=False, by="operator", reason="too easy")
        assert (decided.status, decided.reason) == (MinedStatus.REJECTED, "too easy")
    async with store.transaction() as work:
        assert await work.tasks.get(yes.id) == yes.task
        assert (await work.domains.get(yes.task.domain)).kind == "text"
        with pytest.raises(NotFound):
            await work.tasks.get(no.id)
        for one in (yes, no):
            with pytest.raises(InvalidTransition):
                await decide(work, one.id, accept=True, by="operator")


async def test_mining_proposes_each_episode_once_and_accepts_what_policy_allows(store: Store) -> None:
    """Only consented Episodes of clients; a repeated question is known; ``verified`` accepts unseen and never holds
    out."""
    asked = ({"role": "user", "content": "2 + 2?"},)
    async with store.transaction() as work:
        for name, fields in {
            "ep_a": {},
            "ep_same": {},
            "ep_closed": {"trainable": False},
            "ep_own": {"purpose": "train"},
        }.items():
            episode = nouns.episode(**({"id": name, "trainable": True} | fields))
            await work.episodes.add(episode)
            turn = nouns.turn(id=f"turn_{name}", episode_id=name, trainable=episode.trainable, messages=asked)
            await work.turns.add_many([turn])
            await work.feedback.add(feedback(name, 5.0))
    config = LearnerSection.model_validate({"mining": {"accept": "verified"}})
    report = await mine(store, config, policy=POLICY)
    assert (report.episodes, report.proposed, report.accepted) == (2, 1, 1)
    assert report.refused == {MiningRefusal.KNOWN: 1}
    async with store.reading() as work:
        (proposal,) = await work.mined.list(MinedStatus.ACCEPTED)
        tasks = await work.tasks.list()
    assert proposal.decided_by == "policy"
    assert [(task.split, task.messages, task.metadata["source"]) for task in tasks] == [("train", asked, "mined")]
    again = await mine(store, config, policy=POLICY)
    assert (again.proposed, again.refused) == (0, {MiningRefusal.KNOWN: 1})


async def test_rewards_are_read_together(store: Store) -> None:
    """Those that there are, by Episode."""
    rewards = [
        Reward(episode_id=name, value=0.5, success=False, final=0.5, weights={"exact": 1.0})
        for name in ("ep_a", "ep_b")
    ]
    async with store.transaction() as work:
        for one in rewards:
            await work.rewards.put(one)
    async with store.reading() as work:
        assert await work.rewards.get_many(["ep_b", "ep_x"]) == {"ep_b": rewards[1]}
        assert await work.rewards.get_many([]) == {}


async def test_what_cannot_be_mined_does_not_hold_up_older_episodes(store: Store) -> None:
    """The limit is of proposals: newer Episodes that give none never use it up."""
    async with store.transaction() as work:
        for number, name in enumerate(("ep_old", "ep_new", "ep_newer")):
            asked = ({"role": "user", "content": name},)
            await work.episodes.add(nouns.episode(id=name, trainable=True, created_at=now() - 100 + number))
            await work.turns.add_many(
                [nouns.turn(id=f"turn_{name}", episode_id=name, trainable=True, messages=asked)]
            )
        await work.feedback.add(feedback("ep_old", 5.0))
    report = await mine(store, LearnerSection(), policy=POLICY, limit=1)
    assert (report.episodes, report.proposed) == (3, 1)
    assert (await mine(store, LearnerSection(), policy=POLICY, limit=1)).proposed == 0


async def rated(store: Store, count: int, *, start: int = 0, liked: bool | None = None) -> list[str]:
    """Consented Episodes of one Turn each, every second one liked."""
    names = [f"ep_{number:02}" for number in range(start, start + count)]
    async with store.transaction() as work:
        for number, name in enumerate(names, start):
            await work.episodes.add(nouns.episode(id=name, trainable=True, created_at=now() - 100 + number))
            turn = nouns.turn(
                id=f"turn_{name}", episode_id=name, trainable=True, policy_spans=(PolicySpan(version=0),)
            )
            await work.turns.add_many([turn])
            value = number % 2 == 0 if liked is None else liked
            await work.feedback.add(feedback(name, now() - 50, turn_id=f"turn_{name}", value=value))
    return names


async def opened(store: Store, *, version: int = 0, run_id: str = "run_a", config: LiveSection = LIVE) -> LiveFeed:
    run = TrainingRun(
        id=run_id, policy=POLICY, algorithm="live", start_version=0, domains=(), planned_steps=0, seed=0
    )
    feed = LiveFeed(store=store, config=config, run=run, tokenizer=None)
    await feed.open(version)
    return feed


async def handed_out(feed: LiveFeed) -> LiveBatch:
    batch = await feed.next()
    assert batch is not None
    return batch


async def published(store: Store, feed: LiveFeed, batch: LiveBatch, version: int) -> None:
    """The version that a batch made."""
    provenance = Provenance(
        parent_version=version - 1, code_commit="abc", config={}, packages={}, seed=1, step=1, live=batch.state
    )
    checkpoint = nouns.checkpoint(version=version, provenance=provenance)
    async with store.transaction() as work:
        if version == 1:
            await work.bases.put(Base(name="smol", path="/b", fingerprint="f" * 64))
            await work.policies.add(Policy(name=POLICY, base="smol"))
        await work.versions.mint(
            POLICY, kind="lora", origin="live", parent_version=version - 1, checkpoint_id=checkpoint.id
        )
        await work.checkpoints.add(checkpoint)
    feed.published(version)


async def test_what_is_erased_while_it_waits_does_not_train(store: Store) -> None:
    """Episodes are read when they are used: gone and changed ones are left out, and counted."""
    names = await rated(store, 8)
    feed = await opened(store)
    async with store.transaction() as work:
        await work.erasure.episode("ten_a", names[0])
        await work.feedback.add(feedback(names[1], now() - 40, turn_id=f"turn_{names[1]}", value=True))
    batch = await handed_out(feed)
    assert (batch.episode_ids, batch.values["refused_changed"]) == (tuple(names[2:6]), 2.0)
    assert names[0] not in (await handed_out(feed)).episode_ids


async def test_a_resumed_run_goes_on_exactly(store: Store) -> None:
    """From the newest version a new feed hands out what the old one would have: Episodes, baselines, quotas."""
    await rated(store, 12)
    feed = await opened(store)
    await published(store, feed, await handed_out(feed), 1)
    again = await opened(store, version=1)
    expected, resumed = await handed_out(feed), await handed_out(again)
    assert (resumed.episode_ids, resumed.mixture, resumed.state) == (
        expected.episode_ids,
        expected.mixture,
        expected.state,
    )
    assert resumed.state.taken == {"ten_a": 8}
    other = await handed_out(await opened(store, version=1, run_id="run_b"))
    assert other.state.taken == {"ten_a": 4}


async def test_a_batch_that_made_no_version_is_remembered_by_the_next(store: Store) -> None:
    """What was passed over because all were liked alike is not handed out again to those who go on from there."""
    alike = await rated(store, 4, liked=True)
    told_apart = await rated(store, 4, start=4)
    feed = await opened(store)
    first, second = await handed_out(feed), await handed_out(feed)
    assert (first.episode_ids, second.episode_ids) == (tuple(alike), tuple(told_apart))
    await published(store, feed, second, 1)
    assert set(second.state.trained) == {*alike, *told_apart}
    assert await (await opened(store, version=1)).next() is None


async def test_new_words_on_a_trained_episode_teach_only_themselves(store: Store) -> None:
    """A comment on the whole of an Episode whose one answer was rated teaches nothing again; a new rating does."""
    names = await rated(store, 4)
    feed = await opened(store)
    await published(store, feed, await handed_out(feed), 1)
    async with store.transaction() as work:
        for name in names:
            await work.feedback.add(feedback(name, now() - 40, value=False))
    assert await feed.next() is None
    async with store.transaction() as work:
        for name in names[:2]:
            await work.feedback.add(feedback(name, now() - 30, turn_id=f"turn_{name}", name="score", value=0.25))
    batch = await handed_out(feed)
    assert (batch.episode_ids, batch.values["rewarded"]) == (tuple(names[:2]), 2.0)


async def test_a_large_client_does_not_stop_learning(store: Store) -> None:
    """With many Episodes of one tenant and one of another there is a step all the same."""
    await rated(store, 6)
    async with store.transaction() as work:
        await work.episodes.add(nouns.episode(id="ep_z", tenant_id="ten_b", trainable=True))
        one = nouns.turn(id="turn_z", episode_id="ep_z", tenant_id="ten_b", trainable=True)
        await work.turns.add_many([one.model_copy(update={"policy_spans": (PolicySpan(version=0),)})])
        await work.feedback.add(feedback("ep_z", now(), turn_id="turn_z", tenant_id="ten_b"))
    config = LIVE.model_copy(update={"min_episodes": 4})
    feed = await opened(store, config=config)
    assert "ep_z" in (await handed_out(feed)).episode_ids
    assert await feed.next() is None
    assert feed.waiting == 3
