"""The Tasks that a run chooses from, read from the store."""

import pytest

from core.config.learner import LearnerSection
from core.config.learner_data import DataSection
from core.policy import Base, Policy
from core.run import RunStatus, StepMetrics, TrainingRun
from core.task import Domain, Limits
from learner.task_pool import TaskPools, conversation_tokens
from tests import nouns


def run(name: str, domain: str, *, start: int, published: tuple[int, ...], status=RunStatus.FINISHED) -> TrainingRun:
    """A run of one Domain that published versions."""
    steps = tuple(
        StepMetrics(step=number, version=version, loss=0.0, gradient_norm=0.0)
        for number, version in enumerate(published, start=1)
    )
    return TrainingRun(
        id=name,
        policy="coder",
        algorithm="grpo",
        start_version=start,
        domains=(domain,),
        planned_steps=9,
        seed=0,
        steps=steps,
        status=status,
    )


@pytest.fixture
async def store(fresh_sqlite_url, open_store):
    """Three Domains with Tasks, and a Policy whose version 2 comes from 1; version 3 is another branch."""
    store = await open_store(fresh_sqlite_url)
    async with store.transaction() as work:
        await work.bases.put(Base(name="tiny", path="/nowhere", fingerprint="f"))
        await work.policies.add(Policy(name="coder", base="tiny"))
        for name, quota in (("sums", 3.0), ("code", 1.0), ("old", 1.0)):
            await work.domains.put(Domain(name=name, kind="text", description=name, quota=quota))
            await work.tasks.add_many([nouns.task(f"{name} {index}", domain=name) for index in range(3)])
        for parent in (0, 1, 0):
            await work.versions.mint("coder", kind="lora", origin="grpo", parent_version=parent)
        await work.runs.put(run("run_old", "old", start=0, published=(1,)))
        await work.runs.put(run("run_sums", "sums", start=1, published=(2,)))
        await work.runs.put(run("run_other", "code", start=0, published=(3,)))
    return store


async def test_earlier_domains_are_those_of_the_start_versions_line(store) -> None:
    """What the line was trained on is replayed; other branches' Domains, and the run's own, are not."""
    present = run("run_now", "sums", start=2, published=(), status=RunStatus.RUNNING)
    pools = TaskPools(store=store, config=LearnerSection(), run=present)
    assert await pools.earlier_domains() == ("old",)
    fresh = run("run_new", "sums", start=0, published=(), status=RunStatus.RUNNING)
    assert await TaskPools(store=store, config=LearnerSection(), run=fresh).earlier_domains() == ()


async def test_the_pool_has_quotas_and_lengths(store) -> None:
    """Quotas are the Domains' own unless replaced; lengths are read when the length curriculum asks for them."""
    data = DataSection(shares={"sums": 7.0}, length_start=10)
    present = run("run_now", "sums", start=2, published=(), status=RunStatus.RUNNING)
    pools = TaskPools(store=store, config=LearnerSection(data=data), run=present)
    pool = await pools.now(("old",))
    assert pool.quotas == {"sums": 7.0}
    assert {name: len(lengths) for name, lengths in pool.lengths.items()} == {"sums": 3, "old": 3}
    task = nouns.task("sums 0", domain="sums")
    assert pool.lengths["sums"][task.id] == conversation_tokens(task)
    long = nouns.task("x" * 400, domain="sums", limits=Limits(max_turns=3, max_tokens=100))
    async with store.transaction() as work:
        await work.tasks.add_many([long])
    assert (await pools.now(("old",))).lengths["sums"][long.id] == 400
