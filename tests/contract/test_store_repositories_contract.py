"""The contract of every repository, on SQLite and on PostgreSQL."""

import asyncio
import math

import pytest

from core.access import ApiKey, AuditRecord, Scope, Tenant
from core.episode import EpisodeGroup, EpisodeStatus
from core.errors import Conflict, InvalidTransition, LeaseLost, NotFound, StoreError
from core.experiment import Arm, Assignment, Experiment
from core.policy import Base, Policy, ServingStatus
from core.release import ReleaseStatus
from core.run import StepMetrics, TrainingRun
from core.task import Domain
from core.verdict import Reward
from store.held_versions import held, pin, unpin
from store.store import Store
from tests import nouns


async def add_policy(store: Store, name: str = "coder") -> Policy:
    policy = Policy(name=name, base="smol")
    async with store.transaction() as work:
        await work.policies.add(policy)
    return policy


async def test_a_transaction_that_fails_leaves_nothing(store: Store) -> None:
    """An exception inside a transaction undoes all of it."""
    with pytest.raises(RuntimeError, match="on purpose"):
        async with store.transaction() as work:
            await work.policies.add(Policy(name="coder", base="smol"))
            raise RuntimeError("on purpose")
    async with store.reading() as work:
        assert await work.policies.list() == []


async def test_reading_takes_no_changes(store: Store) -> None:
    """A reading transaction refuses a change before the database sees it."""
    async with store.reading() as work:
        with pytest.raises(StoreError, match="takes no changes"):
            await work.policies.add(Policy(name="coder", base="smol"))


async def test_tasks_are_kept_once_and_listed_in_order(store: Store) -> None:
    """The same Task twice is one row; filters by domain and split hold for ids, pages and counts alike."""
    train = [nouns.task(f"{n} + 1?") for n in range(5)]
    heldout = [nouns.task("9 + 9?", split="heldout")]
    other = [nouns.task("say a", domain="letters")]
    async with store.transaction() as work:
        assert await work.tasks.add_many(train + heldout + other) == 7
        assert await work.tasks.add_many([*train, nouns.task("new?")]) == 1
    async with store.reading() as work:
        sums = await work.tasks.ids("sums", "train")
        assert sums == sorted(task.id for task in [*train, nouns.task("new?")])
        assert await work.tasks.count("sums") == 7
        assert await work.tasks.count() == 8
        page = await work.tasks.list("sums", "train", limit=2, offset=2)
        assert len(page) == 2
        assert await work.tasks.get(heldout[0].id) == heldout[0]
        with pytest.raises(NotFound, match="there is no Task"):
            await work.tasks.get("task_absent")


async def test_domains_and_bases_are_replaced_by_name(store: Store) -> None:
    """Putting twice keeps the second."""
    async with store.transaction() as work:
        await work.domains.put(Domain(name="sums", kind="text", description="old"))
        await work.domains.put(Domain(name="sums", kind="text", description="new"))
        await work.bases.put(Base(name="smol", path="/a", fingerprint="1"))
        await work.bases.put(Base(name="smol", path="/b", fingerprint="2"))
    async with store.reading() as work:
        assert [domain.description for domain in await work.domains.list()] == ["new"]
        assert (await work.domains.get("sums")).description == "new"
        assert [base.path for base in await work.bases.list()] == ["/b"]
        assert (await work.bases.get("smol")).fingerprint == "2"


async def test_episodes_page_newest_first(store: Store) -> None:
    """Pages joined by ``before`` hold every Episode once, newest first, even when times are equal."""
    episodes = [nouns.episode(created_at=float(n // 3), domain="sums") for n in range(10)]
    async with store.transaction() as work:
        for episode in episodes:
            await work.episodes.add(episode)
    expected = [e.id for e in sorted(episodes, key=lambda e: (e.created_at, e.id), reverse=True)]
    seen: list[str] = []
    async with store.reading() as work:
        while page := await work.episodes.list(limit=3, before=seen[-1] if seen else None):
            seen.extend(episode.id for episode in page)
    assert seen == expected


async def test_episodes_are_filtered(store: Store) -> None:
    """Every filter of the list restricts by its field."""
    wanted = nouns.episode(
        policy="p", domain="d", purpose="train", tenant_id="t", group_id="g", status=EpisodeStatus.SCORED
    )
    async with store.transaction() as work:
        await work.episodes.add(wanted)
        await work.episodes.add(nouns.episode())
    async with store.reading() as work:
        for filters in (
            {"policy": "p"},
            {"domain": "d"},
            {"purpose": "train"},
            {"tenant_id": "t"},
            {"group_id": "g"},
            {"status": EpisodeStatus.SCORED},
        ):
            assert await work.episodes.list(**filters) == [wanted]


async def test_an_episode_follows_its_lifecycle(store: Store) -> None:
    """An update checks the stored status; an unchanged status is allowed."""
    episode = nouns.episode()
    async with store.transaction() as work:
        await work.episodes.add(episode)
        with pytest.raises(Conflict, match="exists already"):
            await work.episodes.add(episode)
        await work.episodes.update(episode.model_copy(update={"error": "late"}))
        with pytest.raises(InvalidTransition):
            await work.episodes.update(episode.model_copy(update={"status": EpisodeStatus.SCORED}))
        finished = episode.model_copy(update={"status": EpisodeStatus.FINISHED})
        await work.episodes.update(finished)
        with pytest.raises(NotFound):
            await work.episodes.update(nouns.episode())
    async with store.reading() as work:
        assert await work.episodes.get(episode.id) == finished


async def test_groups_round_trip(store: Store) -> None:
    """An EpisodeGroup comes back as it went in."""
    group = EpisodeGroup(id="grp_a", task_id="task_a", policy="coder", version=1, size=8)
    async with store.transaction() as work:
        await work.groups.add(group)
        assert await work.groups.get("grp_a") == group


async def test_a_turn_round_trips_exactly(store: Store) -> None:
    """Ids, log-probs to the last bit, NUL characters and unknown message fields survive."""
    turn = nouns.turn(
        response={"role": "assistant", "content": "a\x00b ü 😀", "x": {"y": [1, None]}},
        prompt_ids=tuple(range(150_000, 150_010)),
        output_ids=(0, 2**31, 7),
        output_logprobs=(-1e-17, -0.1, -math.inf),
    )
    async with store.transaction() as work:
        assert await work.turns.add_many([turn]) == 1
    async with store.reading() as work:
        assert await work.turns.get(turn.id) == turn


async def test_a_large_turn_goes_to_a_blob(store: Store) -> None:
    """Arrays above ``store.inline_bytes`` are kept as a blob and come back the same."""
    turn = nouns.turn(prompt_ids=tuple(range(30_000)))
    async with store.transaction() as work:
        await work.turns.add_many([turn])
    assert await store.blobs.exists(f"turns/ep_a/{turn.id}")
    async with store.reading() as work:
        assert await work.turns.for_episode("ep_a") == [turn]


async def test_a_repeated_request_adds_no_second_turn(store: Store) -> None:
    """The same id, or the same tenant, key and choice, adds nothing; another choice or tenant does."""
    first = nouns.turn(idempotency_key="k")
    async with store.transaction() as work:
        assert await work.turns.add_many([first, first]) == 1
        assert await work.turns.add_many([first]) == 0
        assert await work.turns.add_many([nouns.turn(idempotency_key="k")]) == 0
        assert await work.turns.add_many([nouns.turn(idempotency_key="k", choice=1)]) == 1
        assert await work.turns.add_many([nouns.turn(idempotency_key="k", tenant_id="ten_b")]) == 1
        assert await work.turns.add_many([nouns.turn(), nouns.turn()]) == 2


async def test_a_repeated_large_turn_leaves_no_stray_blob(store: Store) -> None:
    """A refused duplicate takes its own blob away and leaves the first one's alone."""
    large = tuple(range(30_000))
    first = nouns.turn(idempotency_key="k", prompt_ids=large)
    second = nouns.turn(idempotency_key="k", prompt_ids=large)
    async with store.transaction() as work:
        await work.turns.add_many([first])
        assert await work.turns.add_many([first, second]) == 0
    assert await store.blobs.exists(f"turns/ep_a/{first.id}")
    assert not await store.blobs.exists(f"turns/ep_a/{second.id}")


async def test_repeated_requests_race_to_one_turn(store: Store) -> None:
    """Many gateways that record the same request at once store one Turn."""

    async def record() -> int:
        async with store.transaction() as work:
            return await work.turns.add_many([nouns.turn(idempotency_key="k")])

    assert sum(await asyncio.gather(*(record() for _ in range(8)))) == 1


async def test_turns_of_an_episode_come_in_order(store: Store) -> None:
    """Order is by index, then choice, whatever the order of arrival; ``existing`` tells what is durable."""
    turns = [nouns.turn(index=index, choice=choice) for index in range(3) for choice in range(2)]
    async with store.transaction() as work:
        await work.turns.add_many(list(reversed(turns)))
        assert await work.turns.for_episode("ep_a") == turns
        assert await work.turns.existing([turns[0].id, "turn_absent"]) == {turns[0].id}


async def test_verdicts_and_rewards(store: Store) -> None:
    """Verdicts are added once each; a Reward is replaced."""
    verdict = nouns.verdict()
    async with store.transaction() as work:
        assert await work.verdicts.add_many([verdict, nouns.verdict(episode_id="ep_b")]) == 2
        assert await work.verdicts.add_many([verdict]) == 0
        assert await work.verdicts.for_episode("ep_a") == [verdict]
        for value in (0.0, 1.0):
            await work.rewards.put(
                Reward(episode_id="ep_a", value=value, success=True, final=value, weights={"exact": 1.0})
            )
        assert (await work.rewards.get("ep_a")).value == 1.0
        with pytest.raises(NotFound):
            await work.rewards.get("ep_b")


async def test_policies(store: Store) -> None:
    """A name is taken once; an update replaces, and leaves the counter of versions alone."""
    policy = await add_policy(store)
    async with store.transaction() as work:
        with pytest.raises(Conflict):
            await work.policies.add(policy)
        await work.versions.mint("coder", kind="lora", origin="sft")
        await work.policies.update(policy.model_copy(update={"promoted_version": 1}))
        assert (await work.policies.get("coder")).promoted_version == 1
        assert (await work.versions.mint("coder", kind="lora", origin="grpo")).version == 2
        with pytest.raises(NotFound):
            await work.policies.update(Policy(name="absent", base="smol"))


async def test_version_numbers_are_given_out_once(store: Store) -> None:
    """Concurrent minters of one Policy get 1..n, each number once; another Policy counts for itself."""
    await add_policy(store)
    await add_policy(store, "other")

    async def mint() -> int:
        async with store.transaction() as work:
            return (await work.versions.mint("coder", kind="lora", origin="grpo")).version

    assert sorted(await asyncio.gather(*(mint() for _ in range(12)))) == list(range(1, 13))
    async with store.transaction() as work:
        assert (await work.versions.mint("other", kind="lora", origin="sft")).version == 1
        assert [version.version for version in await work.versions.list("coder")] == list(range(1, 13))
        with pytest.raises(NotFound, match="Policy absent"):
            await work.versions.mint("absent", kind="lora", origin="sft")


async def test_version_zero_is_the_base(store: Store) -> None:
    """Version 0 can be read for every Policy without having been minted."""
    await add_policy(store)
    async with store.reading() as work:
        base = await work.versions.get("coder", 0)
        assert (base.kind, base.serving) == ("base", ServingStatus.LIVE)
        with pytest.raises(NotFound):
            await work.versions.get("coder", 1)
        with pytest.raises(NotFound):
            await work.versions.get("absent", 0)


async def test_a_version_follows_its_serving_status(store: Store) -> None:
    """A refused version stays refused; lists by status see the change."""
    await add_policy(store)
    async with store.transaction() as work:
        version = await work.versions.mint("coder", kind="lora", origin="sft", pins=("operator",))
        assert version.pinned
        assert await work.versions.list_serving([ServingStatus.WANTED]) == [version]
        refused = version.model_copy(update={"serving": ServingStatus.REFUSED, "serving_reason": "probe"})
        await work.versions.update(refused)
        assert await work.versions.get("coder", 1) == refused
        assert await work.versions.list_serving([ServingStatus.WANTED, ServingStatus.LIVE]) == []
        with pytest.raises(InvalidTransition):
            await work.versions.update(version)


async def test_pins_and_serving_status_changed_at_once_both_survive(store: Store) -> None:
    """Writers of different fields of one version lock it, so that none overwrites another."""
    await add_policy(store)
    async with store.transaction() as work:
        await work.versions.mint("coder", kind="lora", origin="sft")

    async def serve(status: ServingStatus) -> None:
        async with store.transaction() as work:
            stored = await work.versions.get("coder", 1, lock=True)
            await asyncio.sleep(0.02)
            await work.versions.update(stored.model_copy(update={"serving": status}))

    holders = [f"job_{number}" for number in range(6)]
    await asyncio.gather(serve(ServingStatus.LIVE), *(pin(store, "coder", 1, holder) for holder in holders))
    await asyncio.gather(serve(ServingStatus.DRAINING), *(unpin(store, "coder", 1, one) for one in holders[:3]))
    async with store.reading() as work:
        version = await work.versions.get("coder", 1)
    assert version.serving is ServingStatus.DRAINING
    assert sorted(version.pins) == holders[3:]


async def test_held_versions_take_back_only_their_own_pins(store: Store) -> None:
    """When one of two versions does not exist, the other is unpinned, and the first error rises."""
    await add_policy(store)
    async with store.transaction() as work:
        await work.versions.mint("coder", kind="lora", origin="sft", pins=("operator",))
    with pytest.raises(NotFound, match="coder@9"):
        async with held(store, "coder", (0, 1, 9), holder="job_1"):
            raise AssertionError("not reached")
    async with store.reading() as work:
        assert (await work.versions.get("coder", 1)).pins == ("operator",)


async def test_a_run_is_changed_by_its_newest_lease_only(store: Store) -> None:
    """Whoever took the run over, under a later token or with another job, shuts the earlier learner out."""
    run = TrainingRun(
        id="run_1",
        policy="coder",
        algorithm="sft",
        start_version=0,
        domains=("d",),
        planned_steps=1,
        seed=0,
        job_id="job_1",
        lease_token=1,
    )
    second = run.model_copy(update={"lease_token": 2})
    other = run.model_copy(update={"job_id": "job_2", "lease_token": 1})
    async with store.transaction() as work:
        await work.runs.take_over(run)
        await work.runs.advance(run)
        await work.runs.take_over(second)
        for refused in (work.runs.advance, work.runs.take_over, work.runs.guard):
            with pytest.raises(LeaseLost):
                await refused(run)
        await work.runs.take_over(other)
        with pytest.raises(LeaseLost):
            await work.runs.advance(second)
        await work.runs.advance(other)
        assert await work.runs.get("run_1", lock=True) == other


async def test_checkpoints_and_lineage(store: Store) -> None:
    """A version has one Checkpoint; lineage answers in both directions and notes each pair once."""
    checkpoint = nouns.checkpoint()
    async with store.transaction() as work:
        await work.checkpoints.add(checkpoint)
        with pytest.raises(Conflict):
            await work.checkpoints.add(nouns.checkpoint())
        assert await work.checkpoints.get(checkpoint.id) == checkpoint
        assert await work.checkpoints.for_version("coder", 1) == checkpoint
        with pytest.raises(NotFound, match="coder@2"):
            await work.checkpoints.for_version("coder", 2)
        assert await work.lineage.add_many(checkpoint.id, ["ep_b", "ep_a"]) == 2
        assert await work.lineage.add_many(checkpoint.id, ["ep_a", "ep_c"]) == 1
        assert await work.lineage.episodes_of(checkpoint.id) == ["ep_a", "ep_b", "ep_c"]
        assert await work.lineage.checkpoints_of("ep_a") == [checkpoint.id]


async def test_deployments(store: Store) -> None:
    """Deployments are put, listed and removed by id."""
    deployment = nouns.deployment()
    async with store.transaction() as work:
        await work.deployments.put(deployment)
        await work.deployments.put(nouns.deployment(id=deployment.id, url="http://127.0.0.1:2"))
        assert [found.url for found in await work.deployments.list()] == ["http://127.0.0.1:2"]
        assert (await work.deployments.get(deployment.id)).url == "http://127.0.0.1:2"
        await work.deployments.remove(deployment.id)
        assert await work.deployments.list("smol") == []
        with pytest.raises(NotFound):
            await work.deployments.remove(deployment.id)


async def test_of_two_promoters_one_wins(store: Store) -> None:
    """Two changes on top of the same revision: one is stored, the other gets a Conflict."""
    release = nouns.release()
    async with store.transaction() as work:
        await work.releases.add(release)
        with pytest.raises(Conflict):
            await work.releases.add(nouns.release())

    async def promote(reason: str) -> bool:
        async with store.reading() as work:
            seen = await work.releases.get("coder", 1)
        await both_have_read.wait()
        try:
            async with store.transaction() as work:
                changed = seen.model_copy(update={"status": ReleaseStatus.PROMOTED, "reason": reason})
                stored = await work.releases.update(changed)
        except Conflict:
            return False
        assert stored.revision == seen.revision + 1
        return True

    both_have_read = asyncio.Barrier(2)
    assert sorted(await asyncio.gather(promote("a"), promote("b"))) == [False, True]
    async with store.reading() as work:
        (found,) = await work.releases.list("coder")
        assert (found.status, found.revision) == (ReleaseStatus.PROMOTED, 1)


async def test_a_release_follows_its_table(store: Store) -> None:
    """A rejected Release cannot be promoted, and evidence can be added without a step."""
    async with store.transaction() as work:
        await work.releases.add(nouns.release())
        candidate = await work.releases.get("coder", 1)
        noted = await work.releases.update(candidate.model_copy(update={"evidence": {"shadow": {"n": 1}}}))
        rejected = await work.releases.update(
            noted.model_copy(update={"status": ReleaseStatus.REJECTED, "reason": "worse"})
        )
        with pytest.raises(InvalidTransition):
            await work.releases.update(rejected.model_copy(update={"status": ReleaseStatus.PROMOTED}))
        with pytest.raises(NotFound):
            await work.releases.update(nouns.release(version=9))


async def test_evaluations_are_listed_by_version(store: Store) -> None:
    """Oldest first, for a Policy or one of its versions."""
    first, second = nouns.evaluation(created_at=1.0), nouns.evaluation(created_at=2.0, version=2)
    async with store.transaction() as work:
        await work.evaluations.add(second)
        await work.evaluations.add(first)
        assert await work.evaluations.list("coder") == [first, second]
        assert await work.evaluations.list("coder", 2) == [second]
        assert await work.evaluations.get(first.id) == first


async def test_the_first_assignment_of_a_key_stays(store: Store) -> None:
    """A second arm for the same key is answered with the first; an unknown Experiment is refused."""
    experiment = Experiment(
        id="exp_a",
        policy="coder",
        kind="ab",
        salt="s",
        arms=(Arm(name="a", version=1, share=0.5), Arm(name="b", version=2, share=0.5)),
    )
    async with store.transaction() as work:
        await work.experiments.add(experiment)
        first = Assignment(experiment_id="exp_a", key="user", arm="a", bucket=0.1)
        assert await work.assignments.add(first) == first
        assert await work.assignments.add(first.model_copy(update={"arm": "b"})) == first
        assert await work.assignments.get("exp_a", "user") == first
        with pytest.raises(NotFound):
            await work.assignments.get("exp_a", "other")
        stopped = experiment.model_copy(update={"status": "stopped"})
        await work.experiments.update(stopped)
        assert await work.experiments.list("coder", "running") == []
        assert await work.experiments.get("exp_a") == stopped
    with pytest.raises(Conflict):
        async with store.transaction() as work:
            await work.assignments.add(first.model_copy(update={"experiment_id": "exp_absent"}))


async def test_tenants_keys_and_audit(store: Store) -> None:
    """Keys are found by hash, belong to a known Tenant and can be revoked; audit is newest first."""
    key = ApiKey(id="key_a", tenant_id="ten_a", name="ci", key_hash="h", scopes=frozenset({Scope.INFERENCE}))
    async with store.transaction() as work:
        await work.tenants.add(Tenant(id="ten_a", name="A"))
        assert (await work.tenants.get("ten_a")).name == "A"
        assert len(await work.tenants.list()) == 1
        await work.api_keys.add(key)
        assert await work.api_keys.by_hash("h") == key
        assert await work.api_keys.by_hash("x") is None
        revoked = key.model_copy(update={"revoked": True})
        await work.api_keys.update(revoked)
        assert await work.api_keys.list("ten_a") == [revoked]
        for n in range(3):
            await work.audit.add(
                AuditRecord(id=f"aud_{n}", tenant_id="ten_a", key_id="key_a", action="x", subject="y", created_at=n)
            )
        assert [record.id for record in await work.audit.list(2)] == ["aud_2", "aud_1"]
    with pytest.raises(Conflict):
        async with store.transaction() as work:
            await work.api_keys.add(
                key.model_copy(update={"id": "key_b", "key_hash": "i", "tenant_id": "ten_absent"})
            )


async def test_a_run_keeps_what_is_not_a_number(store: Store) -> None:
    """A TrainingRun with NaN and infinity in its metrics can be stored, replaced and read again."""
    run = TrainingRun(
        id="run_a", policy="coder", algorithm="grpo", start_version=0, domains=("sums",), planned_steps=2, seed=1
    )
    step = StepMetrics(step=1, version=1, loss=math.nan, gradient_norm=math.inf, values={"kl": math.nan})
    async with store.transaction() as work:
        await work.runs.put(run)
        await work.runs.put(run.model_copy(update={"steps": (step,)}))
        (found,) = await work.runs.list("coder")
        assert math.isnan(found.steps[0].loss)
        assert found.steps[0].gradient_norm == math.inf
        assert (await work.runs.get("run_a")).id == "run_a"
        with pytest.raises(NotFound):
            await work.runs.get("run_b")
