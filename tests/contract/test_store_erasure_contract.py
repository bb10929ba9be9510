"""The contract of aliases, promotion races, withdrawal and erasure, on SQLite and on PostgreSQL."""

import asyncio
import contextlib

import pytest

from core import ids
from core.access import ApiKey, Scope, Tenant
from core.alias import Alias
from core.errors import Conflict, NotFound
from core.experiment import Arm, Assignment, Experiment
from core.feedback import Feedback, FeedbackKind
from core.mined_task import MinedTask
from core.perturbation import perturbed
from core.policy import Base, Policy, ServingStatus
from core.release import ReleaseStatus, ReleaseStep
from core.stored_completion import StoredCompletion
from core.stored_response import StoredResponse
from core.suite import Suite
from core.task import Domain
from core.tombstone import Tombstone, TombstoneSubject, Withdrawal
from core.verdict import Reward
from gateway.registry.lineage import versions_of
from gateway.release import ReleaseDesk, base_release
from store.store import Store
from store.taint import mark_withdrawn
from tests import nouns

KEY = ApiKey(id="key_op", tenant_id="ten_op", name="op", key_hash="h" * 64, scopes=frozenset(Scope))
WORDS = "the secret of episode"


@pytest.fixture
async def policy_store(store: Store) -> Store:
    """A Policy whose Base is promoted, with live versions 1 to 3 in one line of descent."""
    async with store.transaction() as work:
        await work.bases.put(Base(name="smol", path="/b", fingerprint="f" * 64))
        await work.policies.add(Policy(name="coder", base="smol"))
        await work.releases.add(base_release("coder"))
        for number in (1, 2, 3):
            checkpoint = nouns.checkpoint(id=f"ckpt_{number}", version=number)
            version = await work.versions.mint(
                "coder", kind="lora", origin="grpo", parent_version=number - 1, checkpoint_id=checkpoint.id
            )
            await work.versions.update(version.model_copy(update={"serving": ServingStatus.LIVE}))
            await work.checkpoints.add(checkpoint)
            await work.releases.add(nouns.release(version=number))
    return store


async def test_of_two_promoters_one_wins(policy_store: Store) -> None:
    """Two promoters that decided against the same promoted version never both move the traffic."""
    desk = ReleaseDesk(store=policy_store)
    tries = [
        desk.promote(KEY, "coder", number, skip=set(ReleaseStep), reason="race", expected=0) for number in (1, 2)
    ]
    outcomes = await asyncio.gather(*tries, return_exceptions=True)
    lost = [one for one in outcomes if isinstance(one, BaseException)]
    assert [type(one) for one in lost] == [Conflict]
    async with policy_store.reading() as work:
        policy = await work.policies.get("coder")
        promoted = [one.version for one in await work.releases.list("coder") if one.status is ReleaseStatus.PROMOTED]
    assert promoted == [policy.promoted_version]
    assert policy.previous_version == 0


async def test_of_two_changes_of_one_release_one_wins(policy_store: Store) -> None:
    """A change on top of an old revision is refused, whoever comes second."""
    async with policy_store.reading() as work:
        read = await work.releases.get("coder", 1)

    async def change(status: ReleaseStatus) -> None:
        async with policy_store.transaction() as work:
            await work.releases.update(read.model_copy(update={"status": status}))

    tries = (change(ReleaseStatus.EVALUATED), change(ReleaseStatus.REJECTED))
    outcomes = await asyncio.gather(*tries, return_exceptions=True)
    assert sorted(type(one).__name__ for one in outcomes) == ["Conflict", "NoneType"]


async def test_aliases_are_kept_by_policy(policy_store: Store) -> None:
    """Set, moved, listed and removed."""
    async with policy_store.transaction() as work:
        await work.aliases.put(Alias(policy="coder", name="stable", version=1))
        await work.aliases.put(Alias(policy="coder", name="stable", version=2))
        assert [one.version for one in await work.aliases.list("coder")] == [2]
        assert await work.aliases.list("other") == []
        await work.aliases.delete("coder", "stable")
        with pytest.raises(NotFound):
            await work.aliases.delete("coder", "stable")


def mined(episode_id: str) -> MinedTask:
    task = nouns.task(f"{WORDS} {episode_id}")
    return MinedTask(
        id=task.id, tenant_id="ten_a", episode_id=episode_id, digest=episode_id, judged_by="answer", task=task
    )


async def fill(store: Store, *names: str) -> None:
    """Everything that can hang on an Episode."""
    async with store.transaction() as work:
        await work.tenants.add(Tenant(id="ten_a", name="A"))
        await work.api_keys.add(KEY.model_copy(update={"id": "key_a", "tenant_id": "ten_a", "key_hash": "a" * 64}))
        for name in names:
            episode_id = f"ep_{name}"
            await work.episodes.add(nouns.episode(id=episode_id))
            said = ({"role": "user", "content": f"{WORDS} {name}"},)
            long = tuple(range(9_000))
            values = {"output_ids": long, "output_logprobs": (-0.5,) * 9_000}
            turns = [nouns.turn(id=f"turn_{name}", episode_id=episode_id, messages=said, **values)]
            await work.turns.add_many(turns)
            await work.verdicts.add_many([nouns.verdict(episode_id=episode_id)])
            await work.rewards.put(Reward(episode_id=episode_id, value=1.0, success=True, final=1.0, weights={}))
            await work.feedback.add(feedback(episode_id))
            await work.stored_completions.add(completion(name), [])
            await work.stored_responses.add(response(name))
            task = mined(episode_id)
            await work.mined.add_many([task])
            await work.tasks.add_many([task.task])


def feedback(episode_id: str) -> Feedback:
    return Feedback(
        id=ids.new_id(ids.FEEDBACK),
        tenant_id="ten_a",
        key_id="key_a",
        episode_id=episode_id,
        name="said",
        kind=FeedbackKind.COMMENT,
        value=WORDS,
    )


def completion(name: str) -> StoredCompletion:
    return StoredCompletion(
        tenant_id="ten_a",
        id=f"chatcmpl-{name}",
        model="coder@1",
        asked_model="coder",
        episode_id=f"ep_{name}",
        turn_ids=(f"turn_{name}",),
        completion={"id": f"chatcmpl-{name}"},
        metadata={"a": "b"},
    )


def response(name: str) -> StoredResponse:
    return StoredResponse(
        id=f"resp_{name}", tenant_id="ten_a", episode_id=f"ep_{name}", turn_ids=(), response={}, input_items=()
    )


async def withdraw(store: Store, name: str) -> None:
    """As the desk does, in one transaction."""
    async with store.transaction() as work:
        gone = Withdrawal(episode_id=f"ep_{name}", tenant_id="ten_a", tombstone_id="tomb_1")
        await work.withdrawals.add_many([gone])
        _, blobs = await work.erasure.episode("ten_a", f"ep_{name}")
        for blob in blobs:
            await store.blobs.delete(blob)


async def test_an_episode_goes_with_all_that_came_of_it(store: Store) -> None:
    """Nothing of the one is left in any table or blob, and everything of the other is."""
    await fill(store, "one", "two")
    async with store.reading() as work:
        before = {table: len((await work.holdings.page(table, "ten_a", None))[0]) for table in work.holdings.tables()}
    await withdraw(store, "one")
    async with store.reading() as work:
        for table in work.holdings.tables():
            rows, _ = await work.holdings.page(table, "ten_a", None)
            if before[table] > 1 and table not in ("tenants", "api_keys"):
                assert len(rows) == before[table] // 2, table
            if table != "withdrawals":
                assert "ep_one" not in str(rows), table
        assert await work.tasks.list() == [mined("ep_two").task]
        assert len((await work.turns.for_episode("ep_two"))[0].output_ids) == 9_000
        assert await work.withdrawals.among(["ep_one", "ep_two"]) == {"ep_one"}
    assert not await store.blobs.exists("turns/ep_one/turn_one")


async def test_what_comes_late_is_refused(store: Store) -> None:
    """A response that is written after the withdrawal is not kept, and a Tenant's tombstone covers all of it."""
    await fill(store, "one", "two")
    await withdraw(store, "one")
    async with store.transaction() as work:
        await work.stored_responses.add(response("one"))
        assert await work.stored_responses.get_many("ten_a", ["resp_one"]) == {}
        assert await work.withdrawals.refused(["ep_one", "ep_two"], ["ten_a"]) == ({"ep_one"}, set())
        await work.tombstones.add(
            Tombstone(
                id="tomb_2", tenant_id="ten_a", subject=TombstoneSubject.TENANT, subject_id="ten_a", by="key_op"
            )
        )
        assert await work.withdrawals.refused(["ep_two"], ["ten_a", "ten_b"]) == (set(), {"ten_a"})


async def test_a_tenant_goes_with_its_keys(store: Store) -> None:
    """After its Episodes the rest of a Tenant, keys and Tasks too, is removed."""
    await fill(store, "one")
    async with store.transaction() as work:
        counts, blobs = await work.erasure.tenant("ten_a")
        assert (counts["tenants"], counts["api_keys"], counts["turns"], counts["tasks"]) == (1, 1, 1, 1)
        assert blobs == ["turns/ep_one/turn_one"]
        with pytest.raises(NotFound):
            await work.tenants.get("ten_a")


async def test_a_tenants_private_tasks_go_with_it(store: Store) -> None:
    """Tasks of its Suites, their rewordings, its Domain and whoever's attempts; all exported; shared Tasks stay."""
    await fill(store)
    made = {"split": "heldout", "domain": "tenant/ten_a/sums"}
    private = nouns.task("a private question", **made)
    shared = nouns.task("everybody's question", split="heldout")
    reworded = perturbed(private, "polite")
    async with store.transaction() as work:
        await work.domains.put(Domain(name="tenant/ten_a/sums", kind="text", description="private"))
        await work.domains.put(Domain(name="tenant/tenXa/sums", kind="text", description="another's"))
        await work.tasks.add_many([private, shared, reworded])
        await work.suites.add(Suite(name="public", task_ids=(shared.id,)))
        await work.suites.add(Suite(name="own", task_ids=(private.id, shared.id), tenant_id="ten_a"))
        for name, task in (("own", private), ("other", reworded), ("public", shared)):
            await work.episodes.add(nouns.episode(id=f"ep_{name}", tenant_id="ten_worker", task_id=task.id))
    async with store.reading() as work:
        assert await work.erasure.episodes_of("ten_a", limit=10) in (["ep_own"], ["ep_other"], ["ep_other", "ep_own"])
        rows, _ = await work.holdings.page("tasks", "ten_a", None)
        assert {row["id"] for row in rows} == {private.id, reworded.id}
        rows, _ = await work.holdings.page("domains", "ten_a", None)
        assert [row["name"] for row in rows] == ["tenant/ten_a/sums"]
    async with store.transaction() as work:
        while found := await work.erasure.episodes_of("ten_a", limit=10):
            for episode_id in found:
                await work.erasure.episode("ten_a", episode_id)
        counts, _ = await work.erasure.tenant("ten_a")
    assert (counts["tasks"], counts["domains"], counts["suites"]) == (2, 1, 1)
    async with store.reading() as work:
        assert await work.tasks.list() == [shared]
        assert [one.name for one in await work.domains.list()] == ["tenant/tenXa/sums"]
        with pytest.raises(NotFound):
            await work.episodes.get("ep_own")
        assert (await work.episodes.get("ep_public")).task_id == shared.id


async def test_rewordings_of_a_mined_task_go_with_its_episode(store: Store) -> None:
    """A withdrawn Episode's Task leaves no copy of its words, nor an attempt at one."""
    await fill(store, "one")
    reworded = perturbed(mined("ep_one").task, "polite")
    async with store.transaction() as work:
        await work.tasks.add_many([reworded])
        await work.episodes.add(nouns.episode(id="ep_try", tenant_id="ten_worker", task_id=reworded.id))
        assert await work.erasure.attempts("ep_one") == ["ep_try"]
    await withdraw(store, "one")
    async with store.reading() as work:
        assert await work.tasks.list() == []


async def test_a_tenants_assignments_go_with_it(store: Store) -> None:
    """They name a user, as a digest; another Tenant's stay."""
    arms = (Arm(name="promoted", version=1, share=0.5), Arm(name="candidate", version=2, share=0.5))
    async with store.transaction() as work:
        await work.experiments.add(Experiment(id="exp_a", policy="coder", kind="ab", arms=arms, salt="s"))
        for tenant in ("ten_a", "ten_b"):
            await work.assignments.add(
                Assignment(experiment_id="exp_a", key=tenant, arm="candidate", bucket=0.9, tenant_id=tenant)
            )
        rows, _ = await work.holdings.page("assignments", "ten_a", None)
        assert [row["key"] for row in rows] == ["ten_a"]
        counts, _ = await work.erasure.tenant("ten_a")
        assert counts["assignments"] == 1
        assert (await work.assignments.get("exp_a", "ten_b")).tenant_id == "ten_b"


async def test_a_withdrawal_and_a_publication_never_miss_each_other(policy_store: Store) -> None:
    """Whichever commits first, the version that saw the Episode is marked, however they interleave."""
    seen, saw = asyncio.Event(), asyncio.Event()

    async def both(first: asyncio.Event, second: asyncio.Event) -> None:
        # On PostgreSQL both are open at once; where there is one writer, or a lock, the other waits its turn.
        first.set()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.3):
                await second.wait()

    async def publish() -> None:
        async with policy_store.transaction() as work:
            await work.lineage.add_many("ckpt_3", ["ep_x"])
            await mark_withdrawn(work, "coder", [3])
            await both(saw, seen)

    async def erase() -> None:
        async with policy_store.transaction() as work:
            await work.withdrawals.add_many([Withdrawal(episode_id="ep_x", tenant_id="ten_a", tombstone_id="t")])
            numbers = {one.version for one in await versions_of(work, "ep_x")}
            await mark_withdrawn(work, "coder", numbers)
            await both(seen, saw)

    await asyncio.gather(publish(), erase())
    async with policy_store.reading() as work:
        assert (await work.versions.get("coder", 3)).saw_withdrawn == 1


async def test_versions_that_saw_it_are_marked(policy_store: Store) -> None:
    """The version whose step saw it and those that come from it, each with the number of Episodes."""
    async with policy_store.transaction() as work:
        await work.lineage.add_many("ckpt_2", ["ep_x", "ep_y"])
        gone = [Withdrawal(episode_id=name, tenant_id="ten_a", tombstone_id="t") for name in ("ep_x", "ep_z")]
        await work.withdrawals.add_many(gone)
        marked = await mark_withdrawn(work, "coder", [1, 2, 3])
    assert [(one.version, one.saw_withdrawn) for one in marked] == [(2, 1), (3, 1)]
    async with policy_store.reading() as work:
        assert [one.saw_withdrawn for one in await work.versions.list("coder")] == [0, 1, 1]
