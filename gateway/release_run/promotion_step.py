"""The end of a release: all traffic for the candidate, through the one desk that moves traffic."""

from collections.abc import Awaitable, Callable
from typing import Any

from core.access import ApiKey
from core.errors import Conflict, InvalidTransition, VersionNotServed
from core.release import ReleaseStep
from core.release_run import ReleaseRun, RunStatus, Verdict
from gateway.release import ReleaseDesk, required_steps
from gateway.release_run.common import ended, stop_experiment, taken_back, waiting
from store.store import Store
from store.unit_of_work import UnitOfWork

CONTROLLER = ApiKey(id="release", tenant_id="", name="release plan", key_hash="", scopes=frozenset())
"""Who acts in the audit log where a plan decided, not a person; no request can present it."""

Fence = Callable[[UnitOfWork], Awaitable[None]]


class _TakenBackError(Exception):
    """The ramp or the Release was ended since it passed."""


class PromotionStep:
    """Promotes, ends the ramp and closes the run in one transaction: all of it happens, or nothing."""

    def __init__(self, *, store: Store, desk: ReleaseDesk, fence: Fence) -> None:
        self._store = store
        self._desk = desk
        self._fence = fence

    async def promote(self, run: ReleaseRun) -> None:
        """Move the traffic; what is in the way becomes what the run waits for."""
        try:
            await self._desk.promote(
                CONTROLLER,
                run.policy,
                run.version,
                skip=await self._skipped(run),
                reason=_reason(run),
                alongside=lambda work: self._close(work, run),
            )
        except _TakenBackError:
            await self._end(run)
        except (Conflict, VersionNotServed, InvalidTransition) as error:
            await self._wait(run, error.message)

    async def _skipped(self, run: ReleaseRun) -> set[ReleaseStep]:
        """Steps that a person passed; whoever skips the shadow also takes what it would have proven as given."""
        skipped = set(run.skipped)
        async with self._store.reading() as work:
            required = required_steps(await work.policies.get(run.policy))
        if ReleaseStep.SHADOW in skipped:
            skipped.add(ReleaseStep.EVALUATION)
        return skipped & required

    async def _close(self, work: UnitOfWork, run: ReleaseRun) -> None:
        await self._fence(work)
        if await _against(work, run) is not None:
            raise _TakenBackError
        policy = await work.policies.get(run.policy)
        if policy.promoted_version != run.baseline:
            raise Conflict(f"'{run.policy}@{policy.promoted_version}' was promoted meanwhile")
        await stop_experiment(work, run.ramp_id, "promoted")
        reasons = tuple(f"{step} was skipped: {why}" for step, why in run.skipped.items())
        evidence = {
            "compared": f"{run.label} with {run.policy}@{run.baseline}",
            "decisions": [one.number for one in run.decisions],
        }
        closed = run.decided(Verdict.PROMOTED, reasons=reasons, evidence=evidence).ended(RunStatus.PROMOTED)
        await work.release_runs.update(closed)

    async def _end(self, run: ReleaseRun) -> None:
        """Write down that guardrails or a person took the traffic back after the last step."""
        async with self._store.transaction() as work:
            await self._fence(work)
            newest = await work.release_runs.get(run.id, lock=True)
            why = await _against(work, newest)
            if newest.revision == run.revision and why is not None:
                reason, evidence = why
                over = await ended(work, newest, Verdict.ROLLED_BACK, reasons=(reason,), evidence=evidence)
                await work.release_runs.update(over)

    async def _wait(self, run: ReleaseRun, why: str) -> None:
        changed = waiting(run, f"cannot be promoted: {why}")
        if changed is not run:
            async with self._store.transaction() as work:
                await self._fence(work)
                await work.release_runs.update(changed)


async def _against(work: UnitOfWork, run: ReleaseRun) -> tuple[str, dict[str, Any]] | None:
    """What took the candidate's traffic back since its last step, with its evidence. None: nothing did."""
    if run.ramp_id is not None:
        # Locked: a watcher that is about to stop it comes first, or waits for the promotion.
        experiment = await work.experiments.get(run.ramp_id, lock=True)
        if experiment.status == "stopped":
            why = experiment.stopped_because or "the Experiment was stopped"
            return why, {**experiment.evidence, "rolled_back_at": experiment.stopped_at}
    reason = await taken_back(work, run)
    return None if reason is None else (reason, {})


def _reason(run: ReleaseRun) -> str:
    if not run.skipped:
        return f"release {run.id}"
    return "; ".join(f"{step} skipped: {why}" for step, why in run.skipped.items())
