"""Interventions in a release: promotions and endings by others, second tries, erased evidence, and dead webhooks."""

import asyncio

import pytest
from prometheus_client import CollectorRegistry
from sqlalchemy import delete

from core.errors import Conflict, StoreError
from core.experiment import Arm, Experiment
from core.release import ReleaseStatus, ReleaseStep
from core.release_run import RunStatus
from gateway.experiments.desk import ExperimentDesk
from gateway.experiments.metrics import ExperimentMetrics
from gateway.experiments.webhooks import Webhooks
from gateway.release import ReleaseDesk
from gateway.release_run.conductor import Sources
from gateway.release_run.promotion_step import CONTROLLER
from gateway.release_run.shadow_step import ShadowStep
from gateway.release_run.stored import StoredPairs
from gateway.release_run.teller import Teller
from store.leadership import Leadership
from store.store import Store
from store.tables.shadow_pairs import SHADOW_PAIRS
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

HOLDING = [{"share": 0.5, "min_seconds": 0, "min_episodes": 10_000}, {"share": 1.0}]


@pytest.fixture
async def light_store(fresh_sqlite_url: str, open_store: OpenStore) -> Store:
    """A Store on SQLite: where the database makes no difference."""
    return await open_store(fresh_sqlite_url)


async def test_a_candidate_that_is_promoted_by_hand_stays_promoted(light_store: Store) -> None:
    """The run ends as promoted and its ramp is over; the Release of what has all traffic is not taken back."""
    harness = harness_of(light_store)
    run = await harness.until_still((await harness.begin(plan(ramp=HOLDING))).id)
    desk = ReleaseDesk(store=light_store)
    await desk.promote(CONTROLLER, POLICY, 1, skip=set(ReleaseStep), reason="an emergency")
    run = await harness.until_still(run.id)
    assert (run.status, "by hand" in run.decisions[-1].reasons[0]) == (RunStatus.PROMOTED, True)
    assert await standing(light_store) == (1, ReleaseStatus.PROMOTED, ["stopped", "stopped"])
    assert (await desk.rollback(CONTROLLER, POLICY, reason="worse")).policy.promoted_version == 0


async def test_stopping_after_a_promotion_by_hand_leaves_the_release_alone(light_store: Store) -> None:
    """Who ends the run before the controller looks does not take the promoted version's Release back either."""
    harness = harness_of(light_store)
    run = await harness.until_still((await harness.begin(plan(ramp=HOLDING))).id)
    await ReleaseDesk(store=light_store).promote(CONTROLLER, POLICY, 1, skip=set(ReleaseStep), reason="an emergency")
    await harness.desk.stop(CONTROLLER, run.id, "done by hand")
    assert await standing(light_store) == (1, ReleaseStatus.PROMOTED, ["stopped", "stopped"])


async def test_a_ramp_that_is_stopped_before_the_promotion_is_not_promoted(light_store: Store) -> None:
    """Guardrails that end the Experiment after its last stage passed also end the run."""
    harness = harness_of(light_store)
    run = await harness.begin()
    conductor = await harness.conductor()
    while (await harness.run(run.id)).step is not None:
        await conductor.advance(run.id)
    async with light_store.transaction() as work:
        experiment = await work.experiments.get((await harness.run(run.id)).ramp_id or "")
        changes = {"status": "stopped", "stopped_because": "guardrail error is broken", "stopped_at": 1.0}
        await work.experiments.update(experiment.model_copy(update=changes))
    run = await harness.until_still(run.id, conductor)
    assert (run.status, run.decisions[-1].reasons) == (RunStatus.ROLLED_BACK, ("guardrail error is broken",))
    assert await standing(light_store) == (0, ReleaseStatus.ROLLED_BACK, ["stopped", "stopped"])


async def test_a_rolled_back_candidate_is_tried_again_with_a_reason(light_store: Store) -> None:
    """Without one it is refused; with one it begins anew as a candidate, the reason stands, and it may arrive."""
    harness = harness_of(light_store)
    run = await harness.until_still((await harness.begin(plan(ramp=HOLDING))).id)
    await harness.desk.stop(CONTROLLER, run.id, "wrong plan")
    for reason in (None, " "):
        with pytest.raises(Conflict, match="rolled back"):
            await harness.desk.start(CONTROLLER, plan(), 1, reason=reason)
    run = await harness.desk.start(CONTROLLER, plan(), 1, reason="the plan was wrong")
    assert run.decisions[0].reasons == ("the plan was wrong",)
    assert (await standing(light_store))[1] is ReleaseStatus.CANDIDATE
    assert (await harness.until_still(run.id)).status is RunStatus.PROMOTED


@pytest.mark.parametrize("step", [ReleaseStep.SHADOW, ReleaseStep.RAMP, None])
async def test_a_release_that_is_taken_back_gets_no_traffic(light_store: Store, step: ReleaseStep | None) -> None:
    """Whatever froze the candidate while its run went on: no step opens, nothing is promoted, and the run ends."""
    harness = harness_of(light_store)
    run = await harness.begin()
    conductor = await harness.conductor()
    while (await harness.run(run.id)).step is not step:
        await conductor.advance(run.id)
    status = ReleaseStatus.ROLLED_BACK if step is None else ReleaseStatus.REJECTED
    async with light_store.transaction() as work:
        release = await work.releases.get(POLICY, 1)
        await work.releases.update(release.model_copy(update={"status": status}))
    run = await harness.until_still(run.id, conductor)
    promoted, ended_as, experiments = await standing(light_store)
    assert (run.is_open, promoted, ended_as) == (False, 0, status)
    assert experiments == ["stopped"] * {ReleaseStep.SHADOW: 0, ReleaseStep.RAMP: 1, None: 2}[step]


async def test_a_version_without_files_is_not_released(light_store: Store) -> None:
    """What was deleted cannot be loaded: no run is opened for it."""
    harness = harness_of(light_store)
    run = await harness.begin()
    await harness.desk.stop(CONTROLLER, run.id, "first")
    async with light_store.transaction() as work:
        version = await work.versions.get(POLICY, 1, lock=True)
        await work.versions.update(version.model_copy(update={"files_removed_at": 1.0}))
    with pytest.raises(Conflict, match="deleted"):
        await harness.desk.start(CONTROLLER, plan(), 1)


async def test_stopping_while_an_approval_is_waited_for_keeps_the_evidence(light_store: Store) -> None:
    """The step passed; that nobody approved it does not make it fail."""
    harness = harness_of(light_store)
    run = await harness.until_still((await harness.begin(plan(approvals=["evaluation"]))).id)
    await harness.desk.stop(CONTROLLER, run.id, "no time")
    async with light_store.reading() as work:
        evidence = (await work.releases.get(POLICY, 1)).evidence["evaluation"]
    assert (evidence["passed"], bool(evidence["intervals"])) == (True, True)


async def test_what_people_do_is_announced_when_it_can_be_read(light_store: Store) -> None:
    """Whoever hears of a deed and reads at once finds it done."""
    harness = harness_of(light_store)
    run = await harness.begin()
    seen: list[RunStatus] = []

    async def publish(channel: str, message: object) -> None:
        seen.append((await harness.run(run.id)).status)

    light_store.events.publish = publish  # type: ignore[method-assign]
    await harness.desk.stop(CONTROLLER, run.id, "enough")
    assert seen == [RunStatus.STOPPED]


async def test_erased_pairs_let_no_later_ones_into_the_evidence(light_store: Store) -> None:
    """What is read again ends at the run's cursor, however many of the pairs before it are gone."""
    harness = harness_of(light_store)
    source = StoredPairs()
    harness.sources = Sources(suites=FakeSuites(BETTER), pairs=source, notifier=FakeNotifier())
    run = await harness.until_still((await harness.begin()).id)
    made = [pair.model_copy(update={"experiment_id": run.shadow_id}) for pair in pairs(0.3, 150)]
    async with light_store.transaction() as work:
        for pair in made[:100]:
            await work.shadow_pairs.add(pair)
    run = await harness.until_still(run.id)
    async with light_store.transaction() as work:
        gone = [pair.id for pair in made[:40]]
        await work.erasure._connection.change(delete(SHADOW_PAIRS).where(SHADOW_PAIRS.c.id.in_(gone)))
        for pair in made[100:]:
            await work.shadow_pairs.add(pair)
    step = ShadowStep(store=light_store, pairs=source)
    looked = await step.look(run)
    assert (looked.read, len(looked.pairs.judged)) == (50, 50)
    run = await harness.until_still(run.id)
    assert run.judged == 150


class StuckNotifier(FakeNotifier):
    """Never answers."""

    async def send(self, url: str, message: object) -> bool:
        await asyncio.Event().wait()
        return False


async def test_a_dead_webhook_holds_up_no_release(light_store: Store) -> None:
    """A started controller takes a candidate the whole way while the first notice still hangs."""
    harness = harness_of(light_store)
    harness.sources = Sources(suites=FakeSuites(BETTER), pairs=FakePairs(pairs(0.3, 400)), notifier=StuckNotifier())
    run = await harness.begin(plan(notify_url="http://hook.test/"))
    await left_alone(harness, run.id)
    assert (await harness.run(run.id)).status is RunStatus.PROMOTED


async def test_a_webhook_that_fails_is_left_alone_for_longer_each_time(light_store: Store) -> None:
    """It is not asked again before its pause is over, and then hears of everything."""
    harness = harness_of(light_store, solved={})
    notifier = FakeNotifier(failures=2)
    run = await harness.begin(plan(notify_url="http://hook.test/"))
    await harness.conductor()
    leadership = Leadership(store=light_store, name="other", owner="test", seconds=60.0)
    await leadership.acquire()
    moment = [100.0]
    teller = Teller(store=light_store, leadership=leadership, notifier=notifier, clock=lambda: moment[0])
    left = []
    for seconds in (0.0, 1.0, 1.0, 3.0, 1.0):
        moment[0] += seconds
        await teller.round()
        left.append(notifier.failures)
    await leadership.release()
    assert left == [1, 1, 0, 0, 0]
    assert [message["decision"] for message in notifier.sent] == [1]
    assert all(one.notified for one in (await harness.run(run.id)).decisions)


async def test_a_store_that_is_away_ends_no_controller(light_store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error outside of a run's own steps is logged and waited out."""
    harness = harness_of(light_store)
    run = await harness.begin()
    conductor = await harness.conductor()
    subscribe, failed = light_store.events.subscribe, []

    def broken(channels: list[str]):
        if not failed:
            failed.append(True)
            raise StoreError("the database is away")
        return subscribe(channels)

    monkeypatch.setattr(light_store.events, "subscribe", broken)
    monkeypatch.setattr("gateway.release_run.conductor._PAUSE_SECONDS", 0.0)
    await conductor.start()
    async with asyncio.timeout(60.0):
        while (await harness.run(run.id)).is_open:
            await asyncio.sleep(0.05)
    await conductor.stop()
    assert failed


async def test_of_two_splits_that_begin_at_once_one_is_refused(store: Store, make_config) -> None:
    """On every database: two splits of one Policy could not be told apart."""
    harness = harness_of(store)
    run = await harness.begin()
    await harness.desk.stop(CONTROLLER, run.id, "by hand")
    metrics = ExperimentMetrics(CollectorRegistry())
    desk = ExperimentDesk(store=store, webhooks=Webhooks(config=make_config(), metrics=metrics), metrics=metrics)
    arms = (Arm(name="promoted", version=0, share=0.5), Arm(name="candidate", version=1, share=0.5))
    wanted = [Experiment(id=f"exp_{number}", policy=POLICY, kind="ab", arms=arms, salt="s") for number in range(4)]
    begun = await asyncio.gather(
        *(desk.begin(CONTROLLER, one, reason="a test") for one in wanted), return_exceptions=True
    )
    assert sorted(type(one).__name__ for one in begun) == ["Conflict"] * 3 + ["Experiment"]
    async with store.reading() as work:
        assert len(await work.experiments.list(POLICY, "running")) == 1
