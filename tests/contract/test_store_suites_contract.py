"""Suites, their results and the contamination check, on SQLite and PostgreSQL."""

import pytest

from core.episode import Episode
from core.errors import Conflict, NotFound, TaskError
from core.suite import Suite, SuiteResult
from core.task import VerifierSpec, make_task


def a_task(prompt, split):
    """A Task with one question."""
    verifiers = (VerifierSpec(name="exact", options={"expected": "4"}),)
    return make_task(domain="d", split=split, messages=({"role": "user", "content": prompt},), verifiers=verifiers)


def an_episode(task, name="ep_1"):
    """An Episode of a Task."""
    return Episode(
        id=name, tenant_id="ten_1", task_id=task.id, policy="p", version=1, purpose="train", trainable=True
    )


def a_result(name, **fields):
    """A SuiteResult without attempts."""
    given = {"suite": "s", "suite_version": 1, "policy": "p", "version": 1, "attempts": ()} | fields
    return SuiteResult(id=name, **given)


async def test_a_changed_suite_gets_the_next_version(store):
    """The same Suite again is the stored one; another one is version 2, and both can be read."""
    task = a_task("one", "heldout")
    suite = Suite(name="s", task_ids=(task.id,))
    async with store.transaction() as tx:
        await tx.tasks.add_many([task])
        first = await tx.suites.put_next(suite)
        assert await tx.suites.put_next(suite) == first
        second = await tx.suites.put_next(suite.model_copy(update={"attempts": 3}))
        assert (first.version, second.version) == (1, 2)
        assert await tx.suites.get("s", 1) == first
        assert await tx.suites.get("s") == second
        assert await tx.suites.list() == [second]
        with pytest.raises(Conflict):
            await tx.suites.put_next(suite.model_copy(update={"tenant_id": "ten_1"}))
        with pytest.raises(NotFound):
            await tx.suites.get("t")


async def test_a_suite_takes_stored_held_out_tasks_only(store):
    """A Task that is missing or trained on freely is refused."""
    task = a_task("one", "train")
    async with store.transaction() as tx:
        await tx.tasks.add_many([task])
        for bad in ("task_missing", task.id):
            with pytest.raises(TaskError):
                await tx.suites.add(Suite(name="s", task_ids=(bad,)))


async def test_the_newest_finished_result_is_found(store):
    """Results under way are listed, but are nobody's newest."""
    async with store.transaction() as tx:
        await tx.suite_results.put(a_result("sres_1", created_at=1.0))
        await tx.suite_results.put(a_result("sres_2", created_at=2.0, status="running"))
        await tx.suite_results.put(a_result("sres_3", created_at=3.0, variant="fast"))
        assert (await tx.suite_results.newest("p", 1, "s", variant="standard")).id == "sres_1"
        assert (await tx.suite_results.newest("p", 1, "s")).id == "sres_3"
        assert await tx.suite_results.newest("p", 2, "s") is None
        assert [one.id for one in await tx.suite_results.list("p")] == ["sres_3", "sres_2", "sres_1"]


async def test_an_episode_of_a_held_out_task_never_enters_lineage(store):
    """The store refuses the whole batch, and nothing of it is written."""
    held, free = a_task("held", "heldout"), a_task("free", "train")
    async with store.transaction() as tx:
        await tx.tasks.add_many([held, free])
        await tx.episodes.add_many([an_episode(held), an_episode(free, "ep_2")])
    with pytest.raises(TaskError, match="held out"):
        async with store.transaction() as tx:
            await tx.lineage.add_many("ckpt_1", ["ep_1", "ep_2"])
    async with store.transaction() as tx:
        assert await tx.lineage.episodes_of("ckpt_1") == []
        assert await tx.lineage.add_many("ckpt_1", ["ep_2"]) == 1


async def test_a_near_duplicate_of_a_held_out_prompt_never_enters_lineage(store):
    """Another case and another closing mark do not make another question."""
    held, near = a_task("What is 2 + 2?", "heldout"), a_task("what is  2 + 2", "train")
    async with store.transaction() as tx:
        await tx.tasks.add_many([held, near])
        await tx.episodes.add(an_episode(near))
    with pytest.raises(TaskError, match="asks the same"):
        async with store.transaction() as tx:
            await tx.lineage.add_many("ckpt_1", ["ep_1"])


async def test_what_was_trained_on_is_never_held_out(store):
    """The other direction: a held-out Task, and a Suite of one, are refused after training on a near-duplicate."""
    seen, late = a_task("What is 2 + 2?", "train"), a_task("WHAT is 2 + 2", "heldout")
    async with store.transaction() as tx:
        await tx.tasks.add_many([seen])
        await tx.episodes.add(an_episode(seen))
        await tx.lineage.add_many("ckpt_1", ["ep_1"])
    with pytest.raises(TaskError, match="was trained on"):
        async with store.transaction() as tx:
            await tx.tasks.add_many([late])
