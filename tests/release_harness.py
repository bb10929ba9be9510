"""A release controller on a real store, with Suites, shadow pairs and outcomes that tests make up."""

import asyncio
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from core import ids
from core.arm_outcome import ArmOutcome
from core.errors import NotFound
from core.policy import Base, Policy, ServingStatus
from core.release import ReleaseStatus
from core.release_plan import RampStage, ReleasePlan, ShadowPlan
from core.release_rule import Family, ReleaseRule
from core.release_run import ReleaseRun
from core.shadow import ShadowPair, ShadowStatus
from core.suite import Attempt, Suite, SuiteResult
from gateway.release import base_release
from gateway.release_run.conductor import LEASE, Conductor, Sources
from gateway.release_run.promotion_step import CONTROLLER
from gateway.release_run.run_desk import RunDesk
from store.leadership import Leadership, owner_name
from store.store import Store
from store.unit_of_work import UnitOfWork

POLICY = "coder"
DOMAIN = "maths"
TASKS = 400
BETTER = {0: 0.4, 1: 0.6}
"""Version → share of Tasks that it solves."""


class FakeSuites:
    """One Suite; a version solves the Tasks that ``solved`` says."""

    def __init__(self, solved: Mapping[int, float]) -> None:
        self.solved = dict(solved)
        self.known = Suite(name="held-out", task_ids=tuple(f"t{number}" for number in range(TASKS)))

    async def suite(self, work: UnitOfWork, name: str) -> Suite:
        if name != self.known.name:
            raise NotFound(f"there is no Suite '{name}'")
        return self.known

    async def result(self, work: UnitOfWork, policy: str, version: int, suite: Suite) -> SuiteResult | None:
        share = self.solved.get(version)
        if share is None:
            return None
        attempts = tuple(
            Attempt(task_id=task, domain=DOMAIN, seed=0, success=number < share * TASKS)
            for number, task in enumerate(suite.task_ids)
        )
        return SuiteResult(
            id=f"result-{version}",
            suite=suite.name,
            suite_version=1,
            policy=policy,
            version=version,
            attempts=attempts,
        )


class FakePairs:
    """Pairs that are there from the start, given out in pages."""

    def __init__(self, pairs: Sequence[ShadowPair] = ()) -> None:
        self.pairs = list(pairs)

    async def after(
        self, work: UnitOfWork, experiment_id: str, cursor: Any, limit: int, *, until: Any = None
    ) -> tuple[Sequence[ShadowPair], Any]:
        begin = cursor or 0
        found = self.pairs[begin : min(begin + min(limit, 150), len(self.pairs) if until is None else until)]
        return found, begin + len(found) if found else cursor

    async def counts(self, work: UnitOfWork, experiment_id: str) -> Mapping[str, Any]:
        return {"scored": len(self.pairs)}


class FakeNotifier:
    """Keeps what it was sent; refuses the first ``failures``."""

    def __init__(self, failures: int = 0) -> None:
        self.sent: list[Mapping[str, Any]] = []
        self.failures = failures

    async def send(self, url: str, message: Mapping[str, Any]) -> bool:
        if self.failures:
            self.failures -= 1
            return False
        self.sent.append(message)
        return True


def pairs(difference: float, count: int, *, failed: int = 0) -> list[ShadowPair]:
    """``count`` judged pairs of as many Episodes, of which the first ``failed`` have no answer of the candidate."""
    return [
        ShadowPair(
            id=f"pair{number}",
            experiment_id="any",
            policy=POLICY,
            domain=DOMAIN,
            turn_id=f"turn{number}",
            episode_id=f"ep{number}",
            status=ShadowStatus.FAILED if number < failed else ShadowStatus.SCORED,
            primary_arm="primary",
            candidate_arm="candidate",
            primary_score=0.5 if difference else float(number % 2),
            candidate_score=0.5 + difference if difference else float((number // 2) % 2),
        )
        for number in range(count)
    ]


def plan(**fields: Any) -> ReleasePlan:
    """A plan whose ramp asks for no time and no Episodes."""
    rule = ReleaseRule(targets=(DOMAIN,), families={"all": Family(domains=(DOMAIN,))}, alpha=0.005)
    values: dict[str, Any] = {
        "policy": POLICY,
        "rule": rule,
        "suites": ("held-out",),
        "shadow": ShadowPlan(min_pairs=200),
        "ramp": tuple(RampStage(share=share, min_seconds=0.0, min_episodes=0) for share in (0.1, 0.5, 1.0)),
    }
    return ReleasePlan.model_validate(values | fields)


class ReleaseHarness:
    """``begin`` opens a run; ``until_over`` steps on, with a new Conductor whenever one was killed."""

    def __init__(self, store: Store, *, suites: FakeSuites, shadow: FakePairs, notifier: FakeNotifier) -> None:
        self.store = store
        self.sources = Sources(suites=suites, pairs=shadow, notifier=notifier)
        self.desk = RunDesk(store=store)

    async def begin(self, chosen: ReleasePlan | None = None) -> ReleaseRun:
        """A Policy whose version 1 is a live candidate against version 0, and its run."""
        async with self.store.transaction() as work:
            await work.bases.put(Base(name="base", path="/models/base", fingerprint="f" * 64))
            await work.policies.add(Policy(name=POLICY, base="base"))
            await work.releases.add(base_release(POLICY))
            version = await work.versions.mint(
                POLICY, kind="lora", origin="grpo", parent_version=0, checkpoint_id=None
            )
            await work.versions.update(version.model_copy(update={"serving": ServingStatus.LIVE}))
        return await self.desk.start(CONTROLLER, chosen or plan(), 1)

    async def conductor(self) -> Conductor:
        """One that leads. Whoever led before does not any more."""
        leadership = Leadership(store=self.store, name=LEASE, owner=owner_name(), seconds=60.0)
        async with self.store.transaction() as work:
            stale = await work.leases.acquire(LEASE, "nobody", now=1e12, seconds=0.0)
            if stale is not None:
                await work.leases.release(stale)
        await leadership.acquire()
        return Conductor(store=self.store, sources=self.sources, leadership=leadership)

    async def run(self, run_id: str) -> ReleaseRun:
        """As it stands."""
        async with self.store.reading() as work:
            return await work.release_runs.get(run_id)

    async def until_still(self, run_id: str, conductor: Conductor | None = None) -> ReleaseRun:
        """Step until nothing changes."""
        conductor = conductor or await self.conductor()
        async with asyncio.timeout(60.0):
            while await conductor.advance(run_id):
                await conductor.tell(run_id)
        return await self.run(run_id)

    async def outcomes(self, run: ReleaseRun, rewards: Mapping[str, float], count: int, **fields: Any) -> None:
        """``count`` Episodes of each arm in the ramp's present stage."""
        assert run.ramp_id is not None
        async with self.store.transaction() as work:
            for arm, reward in rewards.items():
                for number in range(count):
                    episode = ids.new_id(ids.EPISODE)
                    outcome = ArmOutcome(
                        experiment_id=run.ramp_id,
                        episode_id=episode,
                        key=episode,
                        arm=arm,
                        stage=len(run.stages) - 1,
                        domain=DOMAIN,
                        requests=1,
                        reward=min(1.0, max(0.0, reward + (0.1 if number % 2 else -0.1))),
                        **fields,
                    )
                    await work.arm_outcomes.put(outcome)


def harness_of(
    store: Store,
    solved: Mapping[int, float] = MappingProxyType(BETTER),
    found: Sequence[ShadowPair] | None = None,
    failures: int = 0,
) -> ReleaseHarness:
    """A harness whose shadow finds these pairs."""
    shadow = FakePairs(pairs(0.3, 400) if found is None else found)
    return ReleaseHarness(store, suites=FakeSuites(solved), shadow=shadow, notifier=FakeNotifier(failures))


async def standing(store: Store) -> tuple[int, ReleaseStatus, list[str]]:
    """The promoted version, the candidate's Release, and the Experiments' states."""
    async with store.reading() as work:
        policy = await work.policies.get(POLICY)
        release = await work.releases.get(POLICY, 1)
        experiments = await work.experiments.list(POLICY)
    return policy.promoted_version, release.status, [one.status for one in experiments]


async def left_alone(harness: ReleaseHarness, run_id: str) -> None:
    """Start a controller, wait until it has taken the run to its end, and stop it."""
    conductor = await harness.conductor()
    await conductor.start()
    async with asyncio.timeout(60.0):
        while (await harness.run(run_id)).is_open:
            await asyncio.sleep(0.05)
    await conductor.stop()
