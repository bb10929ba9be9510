"""What the steps of a release share: moving the Release along, ending a run, and whether the candidate is served."""

from collections.abc import Collection, Mapping
from typing import Any

from core.errors import InvalidTransition
from core.noun import now
from core.policy import PolicyVersion, ServingStatus
from core.release import RELEASE_TRANSITIONS, Release, ReleaseStatus
from core.release_run import ReleaseRun, RunStatus, Verdict
from gateway.release import release_of
from store.unit_of_work import UnitOfWork

_ENDED = frozenset({ReleaseStatus.REJECTED, ReleaseStatus.ROLLED_BACK})


async def release_moved(
    work: UnitOfWork,
    run: ReleaseRun,
    status: ReleaseStatus | None = None,
    *,
    evidence: Mapping[str, Any] | None = None,
    reason: str | None = None,
    missing: Collection[str] = (),
) -> Release:
    """The candidate's Release with evidence added, in ``status`` where its present one allows that.

    A status further on stays: a version whose earlier run was stopped while it was shadowed is not taken back.
    """
    release = await release_of(work, await work.policies.get(run.policy), run.version)
    if status is not None:
        try:
            status = RELEASE_TRANSITIONS.check(release.status, status)
        except InvalidTransition:
            status = None
    changes: dict[str, Any] = {
        "evidence": {**release.evidence, **(evidence or {})},
        "status": status or release.status,
        "reason": reason or release.reason,
        "missing": tuple(sorted({*release.missing, *missing})),
    }
    return await work.releases.update(release.model_copy(update=changes))


async def stop_experiment(
    work: UnitOfWork, experiment_id: str | None, why: str, evidence: Mapping[str, Any] | None = None
) -> None:
    """Stop an Experiment that runs: its routing or mirroring ends on every gateway."""
    if experiment_id is None:
        return
    experiment = await work.experiments.get(experiment_id, lock=True)
    if experiment.status == "stopped":
        return
    changes: dict[str, Any] = {"status": "stopped", "stopped_because": why, "stopped_at": now()}
    if evidence is not None:
        changes["evidence"] = dict(evidence)
    await work.experiments.update(experiment.model_copy(update=changes))


async def ended(
    work: UnitOfWork,
    run: ReleaseRun,
    verdict: Verdict,
    *,
    reasons: tuple[str, ...],
    by: str = "plan",
    evidence: Mapping[str, Any] | None = None,
) -> ReleaseRun:
    """The run over without a promotion of its own: Experiments stopped, the Release rejected, rolled back or kept."""
    status = {
        Verdict.REJECTED: RunStatus.REJECTED,
        Verdict.ROLLED_BACK: RunStatus.ROLLED_BACK,
        Verdict.STOPPED: RunStatus.STOPPED,
    }[verdict]
    why = "; ".join(reasons)
    for experiment_id in (run.shadow_id, run.ramp_id):
        await stop_experiment(work, experiment_id, f"{verdict}: {why}")
    evidence = dict(evidence or {})
    # A step that only waits for its approval has passed, and keeps saying so.
    kept = run.step is None or (run.status is RunStatus.WAITING and verdict is not Verdict.ROLLED_BACK)
    step = (
        {} if run.step is None or kept else {run.step.value: {**evidence, "passed": False, "reasons": list(reasons)}}
    )
    policy = await work.policies.get(run.policy, lock=True)
    # A candidate that somebody gave all traffic by hand has a Release that is not this run's to move any more.
    if policy.promoted_version != run.version:
        target: ReleaseStatus | None = ReleaseStatus.REJECTED
        if verdict is Verdict.ROLLED_BACK or run.ramp_id is not None:
            target = ReleaseStatus.ROLLED_BACK
        elif verdict is Verdict.STOPPED:
            target = None
        await release_moved(work, run, target, evidence=step, reason=why)
    return run.decided(verdict, reasons=reasons, by=by, evidence=evidence, step=run.step).ended(status)


async def ended_by_hand(work: UnitOfWork, run: ReleaseRun) -> ReleaseRun:
    """The run over because somebody promoted its candidate past it: Experiments stopped, the Release left alone."""
    why = f"'{run.label}' was promoted by hand, past this release"
    for experiment_id in (run.shadow_id, run.ramp_id):
        await stop_experiment(work, experiment_id, why)
    return run.decided(Verdict.PROMOTED, reasons=(why,), by="an operator", step=run.step).ended(RunStatus.PROMOTED)


async def taken_back(work: UnitOfWork, run: ReleaseRun) -> str | None:
    """Why the candidate may have no traffic: its Release was ended while this run went on. None: it may."""
    release = await release_of(work, await work.policies.get(run.policy), run.version)
    if release.status not in _ENDED:
        return None
    return f"the Release of '{run.label}' is {release.status}: {release.reason or 'no reason recorded'}"


async def passed(
    work: UnitOfWork,
    run: ReleaseRun,
    status: ReleaseStatus | None,
    *,
    evidence: Mapping[str, Any],
    reasons: tuple[str, ...] = (),
) -> ReleaseRun:
    """The present step done: on to the next one, or waiting for who must approve."""
    step = run.step
    assert step is not None, "only a step can be passed"
    await release_moved(work, run, status, evidence={step.value: {**evidence, "passed": True}})
    run = run.decided(Verdict.PASSED, step=step, evidence=evidence, reasons=reasons)
    if step.value in run.plan.approvals:
        waits = (f"somebody with admin:write must approve '{step}': hone release approve {run.policy}",)
        return run.model_copy(update={"status": RunStatus.WAITING, "waits": waits})
    return onward(run)


def onward(run: ReleaseRun) -> ReleaseRun:
    """At the next step that nobody skipped."""
    following = run.at_step(run.later_step())
    while following.step is not None and following.step in following.skipped:
        following = following.at_step(following.later_step())
    return following


def waiting(run: ReleaseRun, *waits: str) -> ReleaseRun:
    """The run with what it waits for; the same object when that is known already."""
    return run if run.waits == waits else run.model_copy(update={"waits": waits})


def not_served(version: PolicyVersion) -> tuple[str | None, str | None]:
    """Why the candidate cannot answer: what to wait for, and what it must be rejected for; None each."""
    if version.serving is ServingStatus.REFUSED:
        return None, f"no replica can serve it: {version.serving_reason or 'refused'}"
    if version.serving is not ServingStatus.LIVE:
        return f"'{version.label}' is {version.serving}, not live", None
    return None, None
