"""Conductor: takes every open ReleaseRun one step further, again and again; of several processes one does it.

Everything is in the store. What a step read is written with its decision in one transaction, fenced by the lease and
by the run's revision, so that a process may end between any two transactions: the next one goes on from there.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import structlog

from core.errors import Conflict, HoneError, LeaseLost
from core.noun import now
from core.release import ReleaseStep
from core.release_run import ReleaseRun, RunStatus, Verdict
from gateway.release import ReleaseDesk
from gateway.release_run.base import Notifier, PairSource, Step, SuiteSource
from gateway.release_run.common import ended, ended_by_hand
from gateway.release_run.evaluation_step import EvaluationStep
from gateway.release_run.promotion_step import PromotionStep
from gateway.release_run.ramp_step import RampStep
from gateway.release_run.shadow_step import ShadowStep
from gateway.release_run.teller import Teller
from store.events import EXPERIMENTS, JOBS, POLICIES
from store.leadership import Leadership
from store.store import Store
from store.unit_of_work import UnitOfWork

log = structlog.get_logger(__name__)

LEASE = "release"
_LOOK_SECONDS = 1.0
_PAUSE_SECONDS = 5.0
_STEPS_IN_A_ROW = 50
"""Of one run, before the others have their turn."""


@dataclass(frozen=True)
class Sources:
    """Where evidence comes from and decisions go."""

    suites: SuiteSource
    pairs: PairSource
    notifier: Notifier


class Conductor:
    """``start`` and ``stop`` run it beside other things; ``advance`` makes one step."""

    def __init__(
        self, *, store: Store, sources: Sources, leadership: Leadership, clock: Callable[[], float] = now
    ) -> None:
        self._store = store
        self._leadership = leadership
        self._teller = Teller(store=store, leadership=leadership, notifier=sources.notifier, clock=clock)
        self._clock = clock
        self._steps: Mapping[ReleaseStep, Step] = {
            ReleaseStep.EVALUATION: EvaluationStep(store=store, suites=sources.suites),
            ReleaseStep.SHADOW: ShadowStep(store=store, pairs=sources.pairs),
            ReleaseStep.RAMP: RampStep(store=store),
        }
        self._promotion = PromotionStep(store=store, desk=ReleaseDesk(store=store), fence=leadership.fence)
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Compete for the lead, and act while leading."""
        self._task = asyncio.create_task(self._run(), name="releases")
        await self._teller.start()

    async def stop(self) -> None:
        """End; another process takes over at once."""
        await self._teller.stop()
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        await self._leadership.release()

    async def wait(self) -> None:
        """Return, or raise, when it ended by itself."""
        if self._task is not None:
            await self._task

    async def advance(self, run_id: str) -> bool:
        """One step of a run; whether anything changed. Raises LeaseLost where another process leads."""
        async with self._store.reading() as work:
            run = await work.release_runs.get(run_id)
            promoted = (await work.policies.get(run.policy)).promoted_version
        if not run.is_open:
            return False
        if promoted == run.version:
            return await self._write(run, lambda work: ended_by_hand(work, run))
        against = self._against(run, promoted)
        if against is not None:
            verdict, reason = against
            return await self._write(run, lambda work: ended(work, run, verdict, reasons=(reason,)))
        if run.step is None:
            await self._promotion.promote(run)
            return await self._changed(run)
        if run.status is RunStatus.WAITING and run.step is not ReleaseStep.RAMP:
            # A ramp that waits for its approval still has live keys, and is still watched.
            return False
        step = self._steps[run.step]
        looked: Any = await step.look(run)
        return await self._write(run, lambda work: step.apply(work, run, looked))

    async def tell(self, run_id: str) -> bool:
        """Send decisions that nobody outside took yet, oldest first, each at least once; whether all are taken."""
        return await self._teller.tell(run_id)

    def _against(self, run: ReleaseRun, promoted: int) -> tuple[Verdict, str] | None:
        """What ends a run whatever its step says."""
        if promoted != run.baseline:
            verdict = Verdict.STOPPED if run.ramp_id is None else Verdict.ROLLED_BACK
            return (
                verdict,
                f"'{run.policy}@{promoted}' was promoted meanwhile; this evidence is about another one",
            )
        if self._clock() - run.started_at > run.plan.max_seconds:
            verdict = Verdict.REJECTED if run.ramp_id is None else Verdict.ROLLED_BACK
            return verdict, f"undecided after {run.plan.max_seconds:.0f} s"
        return None

    async def _write(self, run: ReleaseRun, change: Callable[[UnitOfWork], Any]) -> bool:
        async with self._store.transaction() as work:
            await self._leadership.fence(work)
            newest = await work.release_runs.get(run.id, lock=True)
            if newest.revision != run.revision:
                # Somebody approved, skipped or stopped in between: what was looked at is of the past.
                return True
            changed = await change(work)
            if changed == run:
                return False
            await work.release_runs.update(changed)
        await self._announce(run, changed)
        return True

    async def _changed(self, run: ReleaseRun) -> bool:
        async with self._store.reading() as work:
            newest = await work.release_runs.get(run.id)
        if newest.revision == run.revision:
            return False
        await self._announce(run, newest)
        return True

    async def _announce(self, before: ReleaseRun, after: ReleaseRun) -> None:
        for decision in after.decisions[len(before.decisions) :]:
            log.info(
                "release_decided",
                release=after.id,
                version=after.label,
                verdict=decision.verdict,
                step=decision.step,
                reasons=decision.reasons,
            )
        if _traffic(before) != _traffic(after):
            await self._store.events.publish(EXPERIMENTS, {"policy": after.policy})

    async def _run(self) -> None:
        while True:
            await self._leadership.acquire()
            try:
                await self._lead()
            except LeaseLost:
                log.warning("release_lead_lost")
            except Exception as error:
                # A store that is away for a moment must not end the process.
                log.exception("release_round_failed", error=str(error))
                await asyncio.sleep(_PAUSE_SECONDS)

    async def _lead(self) -> None:
        async with self._store.events.subscribe([EXPERIMENTS, JOBS, POLICIES]) as subscription:
            while True:
                await self._round()
                await subscription.wait(_LOOK_SECONDS)

    async def _round(self) -> None:
        try:
            async with self._store.reading() as work:
                runs = await work.release_runs.list_open()
        except HoneError as error:
            log.warning("releases_not_read", error=str(error))
            await asyncio.sleep(_PAUSE_SECONDS)
            return
        for run in runs:
            await self._guarded(run)

    async def _guarded(self, run: ReleaseRun) -> None:
        """As many steps as there are to make now; one run's trouble is not the others'."""
        try:
            for _ in range(_STEPS_IN_A_ROW):
                if not await self.advance(run.id):
                    break
        except LeaseLost:
            raise
        except Conflict as error:
            log.info("release_changed_meanwhile", release=run.id, error=str(error))
        except Exception as error:
            log.exception("release_step_failed", release=run.id, version=run.label, error=str(error))


def _traffic(run: ReleaseRun) -> tuple[object, ...]:
    """What gateways route and mirror by."""
    return run.status, run.step, run.shadow_id, run.ramp_id, run.stages
