"""RunDesk: what people do to releases: start one, approve, skip a step, stop."""

import re

from core import ids
from core.access import ApiKey
from core.errors import Conflict, InvalidRequest, NotFound
from core.release import RELEASE_TRANSITIONS, Release, ReleaseStatus, ReleaseStep
from core.release_evidence import rule_of
from core.release_plan import ReleasePlan
from core.release_rule import open_trial
from core.release_run import ReleaseRun, RunStatus, Verdict
from gateway.audit import audit_record
from gateway.release import check_files, release_of, required_steps
from gateway.release_run.common import ended, onward, release_moved, stop_experiment
from store.events import EXPERIMENTS
from store.store import Store
from store.unit_of_work import UnitOfWork

_VERSION = re.compile("[0-9]{1,9}")
"""As in model names."""


class RunDesk:
    """Each deed is one transaction with its audit record; the Conductor sees it within a second."""

    def __init__(self, *, store: Store) -> None:
        self._store = store

    async def start(self, key: ApiKey, plan: ReleasePlan, version: int, *, reason: str | None = None) -> ReleaseRun:
        """Open a run for a version; raises NotFound, InvalidRequest, and Conflict where one cannot be.

        ``reason``: why a version that was rolled back is tried again, from the start; without one it is not.
        """
        steps = plan.steps
        if not steps or list(steps) != [step for step in ReleaseStep if step in steps]:
            raise InvalidRequest("steps come in the order evaluation, shadow, ramp, each once", param="plan")
        async with self._store.transaction() as work:
            policy = await work.policies.get(plan.policy, lock=True)
            candidate = await work.versions.get(plan.policy, version)
            check_files(candidate)
            if policy.promoted_version == version:
                raise Conflict(f"'{candidate.label}' is promoted already")
            lacking = required_steps(policy) - set(steps)
            if lacking:
                raise InvalidRequest(
                    f"release policy '{policy.release_policy}' also requires: {', '.join(sorted(lacking))}",
                    param="plan",
                    hint="add the steps to the plan; 'hone release skip' can pass one with a reason, on record",
                )
            said = await _tried_again(work, await release_of(work, policy, version), reason)
            trial = open_trial(rule_of(plan))
            run = ReleaseRun(
                id=ids.new_id(ids.RELEASE_RUN),
                policy=plan.policy,
                version=version,
                baseline=policy.promoted_version,
                plan=plan,
                open_policy=plan.policy,
                step=steps[0],
                trial=trial,
                live=trial,
                started_by=key.name,
            ).decided(Verdict.STARTED, reasons=said, by=key.name, evidence={"plan": plan.model_dump(mode="json")})
            await work.release_runs.add(run)
            detail: dict[str, object] = {"release": run.id, "reason": reason}
            await work.audit.add(audit_record(key, "release.start", candidate.label, detail))
        await self._announce(run)
        return run

    async def approve(self, key: ApiKey, run_id: str, reason: str | None) -> ReleaseRun:
        """Let a run that waits for it go on; raises Conflict where none is waited for."""
        async with self._store.transaction() as work:
            run = await _open_run(work, run_id)
            if run.status is not RunStatus.WAITING:
                raise Conflict(f"the release of {run.label} waits for no approval")
            reasons = () if reason is None else (reason,)
            run = onward(run.decided(Verdict.APPROVED, reasons=reasons, by=key.name, step=run.step))
            run = await _stored(work, key, run, "release.approve", {"reason": reason})
        await self._announce(run)
        return run

    async def skip(self, key: ApiKey, run_id: str, step: ReleaseStep, reason: str) -> ReleaseRun:
        """Pass a step without its evidence, on record as missing; raises Conflict for one that is over."""
        if not reason.strip():
            raise InvalidRequest("a skipped step needs a reason", param="reason")
        async with self._store.transaction() as work:
            run = await _open_run(work, run_id)
            if step is run.step and run.status is RunStatus.WAITING:
                raise Conflict(f"step '{step}' of {run.label} has passed", hint="approve it instead")
            if step is not run.step and not run.has_ahead(step):
                raise Conflict(f"step '{step}' of {run.label} is over, skipped, or not in its plan")
            run = run.model_copy(update={"skipped": {**run.skipped, step: reason}})
            run = run.decided(Verdict.SKIPPED, reasons=(reason,), by=key.name, step=step)
            status = ReleaseStatus.EVALUATED if step is ReleaseStep.EVALUATION else None
            await release_moved(work, run, status, missing=(step.value,), reason=reason)
            if step is run.step:
                if step is ReleaseStep.SHADOW:
                    await stop_experiment(work, run.shadow_id, f"skipped: {reason}")
                run = onward(run)
            run = await _stored(work, key, run, "release.skip", {"step": step.value, "reason": reason})
        await self._announce(run)
        return run

    async def stop(self, key: ApiKey, run_id: str, reason: str) -> ReleaseRun:
        """End a run; a ramp under way is taken back at once."""
        if not reason.strip():
            raise InvalidRequest("stopping a release needs a reason", param="reason")
        async with self._store.transaction() as work:
            run = await _open_run(work, run_id)
            run = await ended(work, run, Verdict.STOPPED, reasons=(reason,), by=key.name)
            run = await _stored(work, key, run, "release.stop", {"reason": reason})
        await self._announce(run)
        return run

    async def find(self, name: str) -> ReleaseRun:
        """A run by its id, or the newest one of ``coder`` or ``coder@3``; raises NotFound."""
        async with self._store.reading() as work:
            if name.startswith(f"{ids.RELEASE_RUN}_"):
                return await work.release_runs.get(name)
            policy, _, version = name.partition("@")
            if version and not _VERSION.fullmatch(version):
                raise NotFound(f"'{name}' is no id of a release and no NAME[@VERSION]")
            return await work.release_runs.newest(policy, int(version) if version else None)

    async def _announce(self, run: ReleaseRun) -> None:
        # After the transaction: whoever hears of it before reads what was.
        await self._store.events.publish(EXPERIMENTS, {"policy": run.policy})


async def _stored(
    work: UnitOfWork, key: ApiKey, run: ReleaseRun, action: str, detail: dict[str, object]
) -> ReleaseRun:
    run = await work.release_runs.update(run)
    await work.audit.add(audit_record(key, action, run.label, {"release": run.id, **detail}))
    return run


async def _tried_again(work: UnitOfWork, release: Release, reason: str | None) -> tuple[str, ...]:
    """The reasons of a start. One that was rolled back begins anew as a candidate; raises Conflict for no reason."""
    label, given = f"{release.policy}@{release.version}", (reason or "").strip()
    if release.status is ReleaseStatus.REJECTED:
        raise Conflict(f"'{label}' was rejected: {release.reason}", hint="publish a new version")
    if release.status is ReleaseStatus.ROLLED_BACK:
        if not given:
            raise Conflict(
                f"'{label}' was rolled back: {release.reason or 'no reason recorded'}",
                hint="a candidate that was frozen is released again only with a 'reason'",
            )
        status = RELEASE_TRANSITIONS.check(release.status, ReleaseStatus.CANDIDATE)
        await work.releases.update(release.model_copy(update={"status": status, "reason": given}))
    return (given,) if given else ()


async def _open_run(work: UnitOfWork, run_id: str) -> ReleaseRun:
    run = await work.release_runs.get(run_id, lock=True)
    if not run.is_open:
        raise Conflict(f"the release of {run.label} is over: {run.status}")
    return run
