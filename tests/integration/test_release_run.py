"""The release controller: a candidate goes the whole way, is ended with reasons, and survives any restart."""

import pytest

from core.errors import Conflict, InvalidRequest, LeaseLost
from core.experiment import Arm, Experiment
from core.policy import ServingStatus
from core.release import ReleaseStatus, ReleaseStep
from core.release_run import ReleaseRun, RunStatus, Verdict
from core.suite import Attempt, Suite, SuiteResult
from gateway.release_run.conductor import Conductor, Sources
from gateway.release_run.promotion_step import CONTROLLER
from gateway.release_run.stored import StoredPairs, StoredSuites
from store.repositories.release_runs import ReleaseRuns
from store.store import Store
from tests import nouns
from tests.conftest import OpenStore
from tests.release_harness import (
    BETTER,
    POLICY,
    FakeNotifier,
    FakePairs,
    FakeSuites,
    harness_of,
    left_alone,
    pairs,
    plan,
    standing,
)

WAY = [
    (Verdict.STARTED, None),
    (Verdict.PASSED, "evaluation"),
    (Verdict.PASSED, "shadow"),
    (Verdict.NEXT_STAGE, "ramp"),
    (Verdict.NEXT_STAGE, "ramp"),
    (Verdict.PASSED, "ramp"),
    (Verdict.PROMOTED, None),
]


@pytest.fixture
async def light_store(fresh_sqlite_url: str, open_store: OpenStore) -> Store:
    """A Store on SQLite: where the database makes no difference."""
    return await open_store(fresh_sqlite_url)


def verdicts(run: ReleaseRun) -> list[tuple[Verdict, str | None]]:
    return [(one.verdict, one.step) for one in run.decisions]


async def test_a_better_candidate_goes_the_whole_way(store: Store) -> None:
    """Evaluation, shadow, every stage and the promotion follow one another, each with its evidence."""
    harness = harness_of(store)
    run = await harness.until_still((await harness.begin()).id)
    assert (run.status, verdicts(run)) == (RunStatus.PROMOTED, WAY)
    assert await standing(store) == (1, ReleaseStatus.PROMOTED, ["stopped", "stopped"])
    by_step = {one.step: one.evidence for one in run.decisions if one.verdict is Verdict.PASSED}
    assert by_step[ReleaseStep.EVALUATION]["intervals"][0]["count"] == 400
    assert by_step[ReleaseStep.SHADOW]["intervals"][0]["low"] > 0.0
    assert by_step[ReleaseStep.RAMP]["ramp"]["sample_ratio"]["broken"] is False
    async with store.reading() as work:
        release = await work.releases.get(POLICY, 1)
    assert release.evidence["evaluation"]["proven_better"] is True
    assert release.missing == ()


async def test_a_controller_that_dies_after_any_step_is_followed(store: Store) -> None:
    """With another controller for every single step the decisions are the same, each once, on the same evidence."""
    harness = harness_of(store)
    run = await harness.begin()
    earlier: Conductor | None = None
    while run.is_open:
        conductor = await harness.conductor()
        assert await conductor.advance(run.id)
        if earlier is not None and (await harness.run(run.id)).is_open:
            with pytest.raises(LeaseLost):
                await earlier.advance(run.id)
        earlier = conductor
        run = await harness.run(run.id)
    assert (run.status, verdicts(run)) == (RunStatus.PROMOTED, WAY)
    assert run.trial.domains["maths"].harm.count == 400 + run.judged


async def test_a_transaction_that_fails_leaves_nothing_half_done(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every transaction that decides fails once at its end, and the next controller makes it anew as a whole."""
    harness = harness_of(store)
    run = await harness.begin()
    update, failed = ReleaseRuns.update, set()

    async def broken(self: ReleaseRuns, changed: ReleaseRun) -> ReleaseRun:
        stored = await update(self, changed)
        if changed.revision not in failed:
            failed.add(changed.revision)
            raise RuntimeError("killed")
        return stored

    monkeypatch.setattr(ReleaseRuns, "update", broken)
    while (await harness.run(run.id)).is_open:
        before = await standing(store) if failed else None
        try:
            await (await harness.conductor()).advance(run.id)
        except RuntimeError:
            assert before is None or before == await standing(store)
    run = await harness.run(run.id)
    assert (run.status, verdicts(run)) == (RunStatus.PROMOTED, WAY)
    assert run.trial.domains["maths"].harm.count == 400 + run.judged
    assert await standing(store) == (1, ReleaseStatus.PROMOTED, ["stopped", "stopped"])


async def test_suites_that_nobody_ran_are_asked_for_once(light_store: Store) -> None:
    """One Job for each version that lacks a result, however often one looks; then the evaluation goes on."""
    harness = harness_of(light_store, solved={})
    run = await harness.begin()
    for _ in range(3):
        await (await harness.conductor()).advance(run.id)
    waiting = await harness.run(run.id)
    assert sorted(waiting.jobs) == ["held-out@0", "held-out@1"]
    jobs = await light_store.queue.claim(["run_suite"], "worker", lease_seconds=60.0, limit=10)
    assert sorted(job.payload["version"] for job in jobs) == [0, 1]
    assert waiting.step is ReleaseStep.EVALUATION
    assert len(waiting.waits) == 2
    harness.sources.suites.solved.update(BETTER)  # type: ignore[attr-defined]
    assert (await harness.until_still(run.id)).status is RunStatus.PROMOTED


async def test_a_candidate_that_loses_is_rejected_with_the_reason(light_store: Store) -> None:
    """Proven harm in the evaluation ends the run before anybody's request reaches the candidate."""
    harness = harness_of(light_store, solved={0: 0.6, 1: 0.2})
    run = await harness.until_still((await harness.begin()).id)
    assert run.status is RunStatus.REJECTED
    assert "worse than allowed" in run.decisions[-1].reasons[0]
    assert await standing(light_store) == (0, ReleaseStatus.REJECTED, [])
    with pytest.raises(Conflict):
        await harness.desk.start(CONTROLLER, plan(), 1)


async def test_a_candidate_that_only_live_traffic_shows_to_be_worse_is_rejected(light_store: Store) -> None:
    """A gain in Suites does not outweigh a loss in the shadow."""
    harness = harness_of(light_store, found=pairs(-0.4, 400))
    run = await harness.until_still((await harness.begin()).id)
    assert run.status is RunStatus.REJECTED
    assert run.decisions[-1].step is ReleaseStep.SHADOW
    assert "live traffic" in run.decisions[-1].reasons[0]
    assert await standing(light_store) == (0, ReleaseStatus.REJECTED, ["stopped"])


async def test_failed_answers_in_the_shadow_end_the_run(light_store: Store) -> None:
    """A candidate that does not answer breaks the shadow's error limit."""
    harness = harness_of(light_store, found=pairs(0.3, 400, failed=60))
    run = await harness.until_still((await harness.begin()).id)
    assert run.status is RunStatus.REJECTED
    assert any("error" in reason for reason in run.decisions[-1].reasons)


async def test_an_equal_candidate_ends_with_the_shadow(light_store: Store) -> None:
    """What is not proven when the shadow's budget is spent is no reason for traffic."""
    harness = harness_of(light_store, solved={0: 0.5, 1: 0.5}, found=pairs(0.0, 300))
    run = await harness.until_still((await harness.begin()).id)
    assert run.step is ReleaseStep.SHADOW
    assert run.waits
    async with light_store.transaction() as work:
        experiment = await work.experiments.get(run.shadow_id or "")
        changes = {"status": "stopped", "stopped_because": "its budget is spent"}
        await work.experiments.update(experiment.model_copy(update=changes))
    run = await harness.until_still(run.id)
    assert run.status is RunStatus.REJECTED
    assert any("not proven by the end" in reason for reason in run.decisions[-1].reasons)


async def test_approvals_are_waited_for(light_store: Store) -> None:
    """Nothing moves on without the approvals of the plan, and each names who gave it."""
    harness = harness_of(light_store)
    run = await harness.begin(plan(approvals=("evaluation", "ramp")))
    run = await harness.until_still(run.id)
    assert (run.status, run.step) == (RunStatus.WAITING, ReleaseStep.EVALUATION)
    await harness.desk.approve(CONTROLLER, run.id, "looks right")
    run = await harness.until_still(run.id)
    assert (run.status, run.step) == (RunStatus.WAITING, ReleaseStep.RAMP)
    assert (await standing(light_store))[0] == 0
    await harness.desk.approve(CONTROLLER, run.id, None)
    run = await harness.until_still(run.id)
    assert run.status is RunStatus.PROMOTED
    assert [one.reasons for one in run.decisions if one.verdict is Verdict.APPROVED] == [("looks right",), ()]
    with pytest.raises(Conflict):
        await harness.desk.approve(CONTROLLER, run.id, None)


async def test_skipped_steps_are_on_record_as_missing(light_store: Store) -> None:
    """Who passes steps gives a reason, which stays with the Release that was promoted without them."""
    harness = harness_of(light_store, solved={})
    run = await harness.begin()
    with pytest.raises(InvalidRequest):
        await harness.desk.skip(CONTROLLER, run.id, ReleaseStep.EVALUATION, " ")
    for step in (ReleaseStep.SHADOW, ReleaseStep.EVALUATION):
        run = await harness.desk.skip(CONTROLLER, run.id, step, "an emergency")
    with pytest.raises(Conflict):
        await harness.desk.skip(CONTROLLER, run.id, ReleaseStep.SHADOW, "again")
    assert run.step is ReleaseStep.RAMP
    run = await harness.until_still(run.id)
    assert run.status is RunStatus.PROMOTED
    async with light_store.reading() as work:
        release = await work.releases.get(POLICY, 1)
    assert (release.missing, release.status) == (("evaluation", "shadow"), ReleaseStatus.PROMOTED)
    assert "an emergency" in (release.reason or "")


async def test_a_ramp_that_shows_harm_is_taken_back(store: Store) -> None:
    """A broken guardrail ends the Experiment, freezes the candidate and keeps the evidence."""
    harness = harness_of(store)
    chosen = plan(ramp=[{"share": 0.5, "min_seconds": 0, "min_episodes": 10_000}, {"share": 1.0}])
    run = await harness.until_still((await harness.begin(chosen)).id)
    assert run.step is ReleaseStep.RAMP
    await harness.outcomes(run, {"promoted": 0.8, "candidate": 0.8}, 200)
    run = await harness.until_still(run.id)
    assert run.is_open
    await harness.outcomes(run, {"candidate": 0.1, "promoted": 0.8}, 300, events={})
    run = await harness.until_still(run.id)
    assert run.status is RunStatus.ROLLED_BACK
    assert run.decisions[-1].evidence["ramp"]["guardrails"]
    assert await standing(store) == (0, ReleaseStatus.ROLLED_BACK, ["stopped", "stopped"])


async def test_an_experiment_that_a_gateway_stopped_rolls_the_release_back(light_store: Store) -> None:
    """Who watches guardrails stops the Experiment at once; the controller writes down why."""
    harness = harness_of(light_store)
    chosen = plan(ramp=[{"share": 0.5, "min_seconds": 0, "min_episodes": 10_000}, {"share": 1.0}])
    run = await harness.until_still((await harness.begin(chosen)).id)
    async with light_store.transaction() as work:
        experiment = await work.experiments.get(run.ramp_id or "")
        changes = {"status": "stopped", "stopped_because": "guardrail error is broken", "stopped_at": 1.0}
        await work.experiments.update(experiment.model_copy(update=changes))
    run = await harness.until_still(run.id)
    assert run.status is RunStatus.ROLLED_BACK
    assert run.decisions[-1].reasons == ("guardrail error is broken",)


async def test_stopping_takes_the_traffic_back(light_store: Store) -> None:
    """A person ends a ramp with a reason, and may not end it twice."""
    harness = harness_of(light_store)
    chosen = plan(ramp=[{"share": 0.5, "min_seconds": 0, "min_episodes": 10_000}, {"share": 1.0}])
    run = await harness.until_still((await harness.begin(chosen)).id)
    run = await harness.desk.stop(CONTROLLER, run.id, "wrong plan")
    assert run.status is RunStatus.STOPPED
    assert await standing(light_store) == (0, ReleaseStatus.ROLLED_BACK, ["stopped", "stopped"])
    with pytest.raises(Conflict):
        await harness.desk.stop(CONTROLLER, run.id, "again")


async def test_one_release_of_a_policy_at_a_time(store: Store) -> None:
    """A second one is refused while the first goes on, and its plan must ask for what the Policy requires."""
    harness = harness_of(store)
    run = await harness.begin()
    with pytest.raises(Conflict):
        await harness.desk.start(CONTROLLER, plan(), 1)
    await harness.desk.stop(CONTROLLER, run.id, "another plan")
    with pytest.raises(InvalidRequest):
        await harness.desk.start(CONTROLLER, plan(steps=("evaluation",)), 1)
    again = await harness.desk.start(CONTROLLER, plan(), 1)
    assert (await harness.desk.find(POLICY)).id == again.id
    assert (await harness.desk.find(f"{POLICY}@1")).id == (await harness.desk.find(again.id)).id


async def test_evidence_about_another_version_counts_no_more(light_store: Store) -> None:
    """When somebody else is promoted meanwhile, the run ends: it compared with what is not there any more."""
    harness = harness_of(light_store, solved={})
    run = await harness.begin()
    async with light_store.transaction() as work:
        policy = await work.policies.get(POLICY)
        await work.policies.update(policy.model_copy(update={"promoted_version": 2, "previous_version": 0}))
    run = await harness.until_still(run.id)
    assert run.status is RunStatus.STOPPED
    assert "promoted meanwhile" in run.decisions[-1].reasons[0]


async def test_a_candidate_that_is_not_live_is_waited_for(light_store: Store) -> None:
    """No traffic is mirrored to a version that no replica holds; one that is refused ends the run."""
    harness = harness_of(light_store)
    run = await harness.begin()
    async with light_store.transaction() as work:
        version = await work.versions.get(POLICY, 1)
        await work.versions.update(version.model_copy(update={"serving": ServingStatus.WANTED}))
    run = await harness.until_still(run.id)
    assert (run.step, run.shadow_id, run.waits) == (ReleaseStep.SHADOW, None, ("'coder@1' is wanted, not live",))
    async with light_store.transaction() as work:
        refused = {"serving": ServingStatus.REFUSED, "serving_reason": "the probe failed"}
        await work.versions.update(version.model_copy(update=refused))
    run = await harness.until_still(run.id)
    assert (run.status, "the probe failed" in run.decisions[-1].reasons[0]) == (RunStatus.REJECTED, True)


async def test_the_webhook_hears_of_every_decision_at_least_once(light_store: Store) -> None:
    """What was not taken is sent again, in order."""
    harness = harness_of(light_store, failures=2)
    run = await harness.until_still((await harness.begin(plan(notify_url="http://hook.test/"))).id)
    conductor = await harness.conductor()
    await conductor.tell(run.id)
    sent = [message["decision"] for message in harness.sources.notifier.sent]  # type: ignore[attr-defined]
    assert sent == list(range(1, len(run.decisions) + 1))
    assert all(one.notified for one in (await harness.run(run.id)).decisions)


async def test_a_started_controller_needs_nobody(light_store: Store) -> None:
    """Left alone it takes a candidate the whole way, and hands the lead over when it stops."""
    harness = harness_of(light_store)
    run = await harness.begin()
    await left_alone(harness, run.id)
    assert (await harness.run(run.id)).status is RunStatus.PROMOTED


async def test_results_that_workers_stored_are_evidence(light_store: Store) -> None:
    """The newest result on the present form of a Suite counts; without one a Job for that form is asked for."""
    tasks = [nouns.task(f"{number} + 1?", domain="maths", split="heldout") for number in range(120)]
    suite = Suite(name="held-out", task_ids=tuple(sorted(task.id for task in tasks)))
    harness = harness_of(light_store)
    harness.sources = Sources(suites=StoredSuites(), pairs=FakePairs(), notifier=FakeNotifier())
    async with light_store.transaction() as work:
        await work.tasks.add_many(tasks)
        await work.suites.add(suite)
    run = await harness.begin()
    await harness.until_still(run.id)
    jobs = await light_store.queue.claim(["run_suite"], "worker", lease_seconds=60.0, limit=10)
    assert sorted((job.payload["version"], job.payload["suite_version"]) for job in jobs) == [(0, 1), (1, 1)]
    async with light_store.transaction() as work:
        for version, solved in ((0, 24), (1, 96)):
            attempts = tuple(
                Attempt(task_id=task, domain="maths", seed=0, success=place < solved)
                for place, task in enumerate(suite.task_ids)
            )
            result = SuiteResult(
                id=f"res_{version}",
                suite=suite.name,
                suite_version=1,
                policy=POLICY,
                version=version,
                attempts=attempts,
            )
            await work.suite_results.put(result)
    run = await harness.until_still(run.id)
    assert run.step is ReleaseStep.SHADOW
    assert run.decisions[-1].evidence["results"] == {"held-out@0": "res_0", "held-out@1": "res_1"}
    assert run.decisions[-1].evidence["proven_better"] is True


async def test_another_split_is_waited_for(light_store: Store) -> None:
    """A ramp does not begin beside an A/B of somebody else: two splits at once could not be told apart."""
    harness = harness_of(light_store)
    run = await harness.begin()
    arms = (Arm(name="promoted", version=0, share=0.5), Arm(name="candidate", version=1, share=0.5))
    other = Experiment(id="exp_other", policy=POLICY, kind="ab", arms=arms, salt="s")
    async with light_store.transaction() as work:
        await work.experiments.add(other)
    run = await harness.until_still(run.id)
    assert (run.step, run.ramp_id) == (ReleaseStep.RAMP, None)
    assert "exp_other" in run.waits[0]
    async with light_store.transaction() as work:
        await work.experiments.update(other.model_copy(update={"status": "stopped"}))
    assert (await harness.until_still(run.id)).status is RunStatus.PROMOTED


async def test_pairs_that_gateways_stored_are_evidence(light_store: Store) -> None:
    """Every stored pair of the Experiment enters once, over any number of looks and whatever its time."""
    harness = harness_of(light_store)
    harness.sources = Sources(suites=FakeSuites(BETTER), pairs=StoredPairs(), notifier=FakeNotifier())
    run = await harness.until_still((await harness.begin()).id)
    assert run.shadow_id is not None
    made = [pair.model_copy(update={"experiment_id": run.shadow_id, "created_at": 1.0}) for pair in pairs(0.3, 220)]
    async with light_store.transaction() as work:
        for pair in made[:150]:
            await work.shadow_pairs.add(pair)
    run = await harness.until_still(run.id)
    assert (run.judged, run.step) == (150, ReleaseStep.SHADOW)
    async with light_store.transaction() as work:
        for pair in made[150:]:
            await work.shadow_pairs.add(pair.model_copy(update={"created_at": 0.5}))
    run = await harness.until_still(run.id)
    assert (run.judged, run.status) == (220, RunStatus.PROMOTED)
    assert (await harness.run(run.id)).live.domains["maths"].harm.count == 220
