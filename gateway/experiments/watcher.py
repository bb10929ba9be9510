"""GuardrailWatcher: looks at running A/B Experiments and ends one whose candidate does harm, without asking anybody.

One gateway of all watches (a lease); it looks at short intervals, and at once when a replica or a version changes.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field

import structlog

from core.arm_outcome import ArmOutcome
from core.background import cancelled
from core.config.schema import HoneConfig
from core.experiment import Experiment
from core.noun import now
from core.ramp import PROMOTED, RampEvidence, control_and_candidate, gather_evidence, speaks_against
from gateway.experiments.desk import ExperimentDesk
from gateway.experiments.hard_limits import Held, broken_limits, moved_away, still_held
from gateway.experiments.live import LiveExperiments
from gateway.experiments.metrics import ExperimentMetrics
from gateway.experiments.outcome_book import OutcomeBook
from gateway.experiments.outcomes import reward_of, update_reward
from store.events import DEPLOYMENTS, EXPERIMENTS, VERSIONS
from store.leadership import Leadership, owner_name
from store.store import Store
from store.unit_of_work import UnitOfWork

log = structlog.get_logger(__name__)

LEASE = "experiments"
_REWARDS = 50
"""Episodes without a reward that one look asks about."""
_RETRY_SECONDS = 1.0


@dataclass(slots=True)
class _Watched:
    """What is remembered of an Experiment between two looks."""

    book: OutcomeBook
    held: Mapping[str, Held] = field(default_factory=dict)
    judged: bool = False
    """Nothing has come since the outcomes were judged."""
    asked: int = 0
    """Where the search for rewards goes on."""


class GuardrailWatcher:
    """Ends Experiments by their guardrails and hard limits."""

    def __init__(
        self,
        *,
        config: HoneConfig,
        store: Store,
        live: LiveExperiments,
        desk: ExperimentDesk,
        metrics: ExperimentMetrics,
    ) -> None:
        self._interval = config.experiments.watch_seconds
        self._reward_seconds = config.experiments.outcome_days * 86_400.0
        self._store = store
        self._live = live
        self._desk = desk
        self._metrics = metrics
        self._leadership = Leadership(
            store=store, name=LEASE, owner=owner_name(), seconds=config.experiments.lease_seconds
        )
        self._watched: dict[str, _Watched] = {}
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Watch from now on, where the configuration wants this process to."""
        if not self._interval:
            return
        self._task = asyncio.create_task(self._run(), name="guardrails")

    async def stop(self) -> None:
        """Watch no more; another gateway takes over at once."""
        if self._task is None:
            return
        await cancelled(self._task)
        self._task = None
        await self._leadership.release()

    async def look(self) -> list[str]:
        """Look at every running Experiment once; ids of those that were ended. Raises what the store raises."""
        async with self._store.reading() as work:
            running = [one for one in await work.experiments.list(status="running") if one.kind == "ab"]
        for gone in set(self._watched) - {one.id for one in running}:
            del self._watched[gone]
        return [one.id for one in running if await self._look_at(one)]

    async def _run(self) -> None:
        while True:
            try:
                await self._wait_for_work()
                await self._leadership.acquire()
                async with self._store.events.subscribe([DEPLOYMENTS, VERSIONS, EXPERIMENTS]) as subscription:
                    while self._leadership.leads and self._live.running is not None:
                        await self.look()
                        await subscription.wait(self._interval)
                await self._leadership.release()
            except Exception as error:
                self._metrics.watch_failures.inc()
                log.exception("guardrails_not_watched", error=repr(error))
                await asyncio.sleep(_RETRY_SECONDS)

    async def _wait_for_work(self) -> None:
        while self._live.running is None:
            self._live.changed.clear()
            if self._live.running is None:
                await self._live.changed.wait()

    async def _look_at(self, experiment: Experiment) -> bool:
        """Whether the Experiment was ended."""
        watched = self._watched.setdefault(experiment.id, _Watched(OutcomeBook(experiment.id)))
        await self._find_rewards(experiment, watched)
        async with self._store.reading() as work:
            hard, moved = await self._hard_limits(work, experiment, watched)
            if await watched.book.read(work):
                watched.judged = False
        if moved is not None:
            return await self._desk.end(experiment.id, moved) is not None
        if watched.judged and not hard:
            return False
        evidence = await asyncio.to_thread(_evidence, experiment, list(watched.book.outcomes.values()), hard)
        against = speaks_against(evidence)
        if not against:
            watched.judged = True
            return False
        return await self._desk.roll_back(experiment.id, against, evidence) is not None

    async def _hard_limits(
        self, work: UnitOfWork, experiment: Experiment, watched: _Watched
    ) -> tuple[tuple[str, ...], str | None]:
        promoted, candidate = control_and_candidate(experiment)
        policy = await work.policies.get(experiment.policy)
        moved = moved_away(policy, promoted.version) if promoted.name == PROMOTED else None
        if candidate.version in (0, promoted.version):
            return (), moved
        version = await work.versions.get(experiment.policy, candidate.version)
        deployments = await work.deployments.list()
        hard = broken_limits(version, deployments, since=experiment.created_at, held=watched.held)
        watched.held = still_held(watched.held, deployments, experiment.policy, candidate.version)
        return hard, moved

    async def _find_rewards(self, experiment: Experiment, watched: _Watched) -> None:
        """Ask for Verdicts on Episodes that have none; feedback writes itself into the outcome."""
        least = now() - self._reward_seconds
        open_ones = [
            one.episode_id for one in watched.book.outcomes.values() if one.reward is None and one.created_at >= least
        ]
        if not open_ones:
            return
        start = watched.asked % len(open_ones)
        batch = (open_ones[start:] + open_ones[:start])[:_REWARDS]
        watched.asked = start + len(batch)
        async with self._store.reading() as work:
            judged = [one for one in batch if await reward_of(work, one) is not None]
        if judged:
            async with self._store.transaction() as work:
                for episode_id in judged:
                    await update_reward(work, episode_id)


def _evidence(experiment: Experiment, outcomes: list[ArmOutcome], hard: tuple[str, ...]) -> RampEvidence:
    return gather_evidence(experiment, outcomes, now=now(), hard=hard)
