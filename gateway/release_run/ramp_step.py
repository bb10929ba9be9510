"""The ramp of a release: live keys on the candidate, stage by stage, until it has all of them or is rolled back."""

import asyncio
from dataclasses import dataclass
from typing import Any

from core import ids
from core.experiment import Arm, Experiment
from core.noun import now
from core.policy import PolicyVersion
from core.ramp import CANDIDATE, PROMOTED, RampAction, RampDecision, at_share, decide_ramp, ramp_experiment
from core.release import ReleaseStatus, ReleaseStep
from core.release_run import ReleaseRun, RunStatus, StageMark, Verdict
from gateway.experiments.outcome_book import OutcomeBook
from gateway.release_run.common import ended, not_served, passed, release_moved, taken_back, waiting
from store.store import Store
from store.unit_of_work import UnitOfWork


@dataclass
class RampSeen:
    """How the Experiment stands, and what its outcomes say."""

    version: PolicyVersion
    experiment: Experiment | None = None
    decision: RampDecision | None = None


class RampStep:
    """Opens the A/B Experiment, moves it from stage to stage, and takes all traffic back when something is worse."""

    def __init__(self, *, store: Store) -> None:
        self._store = store
        self._book = OutcomeBook("")

    async def look(self, run: ReleaseRun) -> RampSeen:
        """The decision on all outcomes so far."""
        async with self._store.reading() as work:
            seen = RampSeen(version=await work.versions.get(run.policy, run.version))
            if run.ramp_id is None:
                return seen
            seen.experiment = await work.experiments.get(run.ramp_id)
            await self._read(work, run.ramp_id)
        _, refused = not_served(seen.version)
        seen.decision = await asyncio.to_thread(
            decide_ramp,
            run.plan,
            seen.experiment,
            list(self._book.outcomes.values()),
            now=now(),
            hard=() if refused is None else (refused,),
        )
        return seen

    async def apply(self, work: UnitOfWork, run: ReleaseRun, looked: RampSeen) -> ReleaseRun:
        """Act on the decision, unless the Experiment changed since it was made."""
        if run.ramp_id is None:
            wait, refused = not_served(looked.version)
            if refused:
                return await ended(work, run, Verdict.REJECTED, reasons=(refused,))
            return waiting(run, wait) if wait else await _open(work, run)
        experiment = await work.experiments.get(run.ramp_id, lock=True)
        decision = looked.decision
        if decision is None or looked.experiment is None or experiment.stage != looked.experiment.stage:
            return run
        evidence = _evidence(run, decision)
        if experiment.status == "stopped":
            reasons = (experiment.stopped_because or "the Experiment was stopped",)
            evidence = {**evidence, **experiment.evidence, "rolled_back_at": experiment.stopped_at}
            return await ended(work, run, Verdict.ROLLED_BACK, reasons=reasons, evidence=evidence)
        if decision.action is RampAction.ROLL_BACK:
            return await ended(work, run, Verdict.ROLLED_BACK, reasons=decision.reasons, evidence=evidence)
        if run.status is RunStatus.WAITING:
            return run
        if decision.action is RampAction.HOLD:
            return waiting(run, *decision.reasons)
        if decision.action is RampAction.NEXT and decision.next_stage is not None:
            return await _next(work, run, experiment, decision.next_stage, evidence)
        return await passed(work, run, None, evidence=evidence)

    async def _read(self, work: UnitOfWork, experiment_id: str) -> None:
        if self._book.experiment_id != experiment_id:
            self._book = OutcomeBook(experiment_id)
        await self._book.read(work)


async def _open(work: UnitOfWork, run: ReleaseRun) -> ReleaseRun:
    # Locked: whoever else begins a split or promotes waits, and then sees this one.
    if (await work.policies.get(run.policy, lock=True)).promoted_version != run.baseline:
        return run
    ended_already = await taken_back(work, run)
    if ended_already:
        return await ended(work, run, Verdict.REJECTED, reasons=(ended_already,))
    others = [one.id for one in await work.experiments.list(run.policy, "running") if one.kind == "ab"]
    if others:
        # Two splits at once could not be told apart.
        return waiting(run, f"Experiment '{others[0]}' runs on '{run.policy}': it must end first")
    release = await release_moved(work, run, ReleaseStatus.RAMPING)
    identity, began = ids.new_id(ids.EXPERIMENT), now()
    experiment = ramp_experiment(
        run.plan,
        identity=identity,
        salt=identity,
        promoted=Arm(name=PROMOTED, version=run.baseline, share=1.0),
        candidate=Arm(name=CANDIDATE, version=run.version, share=0.0),
        now=began,
        release_id=release.id,
    )
    await work.experiments.add(experiment)
    mark = StageMark(at=began, stage=0, share=run.plan.ramp[0].share)
    return run.model_copy(update={"ramp_id": identity, "stages": (mark,), "waits": ("the first Episodes",)})


async def _next(
    work: UnitOfWork, run: ReleaseRun, experiment: Experiment, stage: int, evidence: dict[str, Any]
) -> ReleaseRun:
    share, moment = run.plan.ramp[stage].share, now()
    await work.experiments.update(at_share(experiment, share, now=moment))
    mark = StageMark(at=moment, stage=stage, share=share)
    run = run.model_copy(update={"stages": (*run.stages, mark), "waits": ()})
    reasons = (f"{share:.0%} of keys from now on",)
    return run.decided(Verdict.NEXT_STAGE, step=ReleaseStep.RAMP, reasons=reasons, evidence=evidence)


def _evidence(run: ReleaseRun, decision: RampDecision) -> dict[str, Any]:
    return {
        "compared": f"{run.label} with {run.policy}@{run.baseline} on live keys",
        "experiment": run.ramp_id,
        "action": decision.action.value,
        "ramp": decision.evidence.model_dump(mode="json"),
        "stages": [mark.model_dump(mode="json") for mark in run.stages],
    }
