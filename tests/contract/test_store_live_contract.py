"""The contract of what learning from live traffic reads and writes, on SQLite and on PostgreSQL."""

import pytest

from core import ids
from core.config.learner import LearnerSection
from core.errors import InvalidTransition, NotFound
from core.feedback import Feedback, FeedbackKind
from core.mined_task import MinedStatus, MinedTask
from sandbox.mining.miner import MiningRefusal, decide, mine
from store.store import Store
from tests import nouns

POLICY = "coder"


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
