"""ExperimentDesk: begins, moves on, reports and ends A/B Experiments; each a transaction with its audit record."""

from collections.abc import Sequence
from typing import Any

import structlog

from core import ids
from core.access import ApiKey, AuditRecord
from core.arm_outcome import ArmOutcome
from core.errors import Conflict, InvalidRequest, NotFound
from core.experiment import Experiment
from core.noun import now
from core.policy import Policy, ServingStatus
from core.ramp import RampEvidence, at_share, control_and_candidate, gather_evidence
from core.release import RELEASE_TRANSITIONS, Release, ReleaseStatus, ReleaseStep
from gateway.audit import audit_record
from gateway.experiments.metrics import ExperimentMetrics
from gateway.experiments.webhooks import Webhooks
from gateway.release import check_files, missing_steps, required_steps
from store.events import EXPERIMENTS
from store.repositories.arm_outcomes import cursor_of
from store.store import Store
from store.unit_of_work import UnitOfWork

log = structlog.get_logger(__name__)

_PAGE = 2_000
_WATCHER = "guardrails"
"""Who the audit log says it was, where no person did it."""


class ExperimentDesk:
    """The one place that changes Experiments of kind ``ab``."""

    def __init__(self, *, store: Store, webhooks: Webhooks, metrics: ExperimentMetrics) -> None:
        self._store = store
        self._webhooks = webhooks
        self._metrics = metrics

    async def begin(self, key: ApiKey, experiment: Experiment, *, reason: str | None = None) -> Experiment:
        """Begin an Experiment, and put its candidate's Release on the ramp.

        Raises NotFound for a Policy or version that does not exist, InvalidRequest for arms that cannot be compared,
        and Conflict: another A/B runs on the Policy, a version is not live, or the candidate's Release does not
        allow traffic and nobody gave a reason to pass over that.
        """
        _check_arms(experiment)
        async with self._store.transaction() as work:
            # Locked: of two that begin at once the second sees the first, and no promotion comes between.
            policy = await work.policies.get(experiment.policy, lock=True)
            control, _ = control_and_candidate(experiment)
            if control.version != policy.promoted_version:
                raise Conflict(
                    f"'{experiment.policy}@{policy.promoted_version}' is promoted by now, not @{control.version}",
                    hint="begin again: the candidate is compared with the promoted version",
                )
            running = await work.experiments.list(experiment.policy, "running")
            others = [one.id for one in running if one.kind == "ab"]
            if others:
                raise Conflict(
                    f"Experiment '{others[0]}' runs on '{experiment.policy}'",
                    hint="stop it first: two splits at once could not be told apart",
                )
            for arm in experiment.arms:
                version = await work.versions.get(experiment.policy, arm.version)
                check_files(version)
                if version.serving is not ServingStatus.LIVE:
                    raise Conflict(
                        f"'{version.label}' is {version.serving}, not live", hint="wait until the fleet has loaded it"
                    )
            await work.experiments.add(experiment)
            for version_number in sorted({arm.version for arm in experiment.arms} - {policy.promoted_version, 0}):
                await _onto_ramp(work, policy, experiment, version_number, reason)
            detail = experiment.model_dump(mode="json", include={"policy", "arms", "key"}) | {"reason": reason}
            await work.audit.add(audit_record(key, "experiment.begin", experiment.id, detail))
        await self._announce("experiment_began", experiment)
        return experiment

    async def move_on(self, key: ApiKey, experiment_id: str, share: float) -> Experiment:
        """Give the candidate a larger share of the keys.

        Raises NotFound, InvalidRequest, and Conflict for one that is stopped or that a release moves on by its plan.
        """
        async with self._store.transaction() as work:
            experiment = await _running(work, experiment_id)
            for run in await work.release_runs.list_open():
                if run.ramp_id == experiment_id:
                    raise Conflict(
                        f"release '{run.id}' moves Experiment '{experiment_id}' on by its plan",
                        hint="stop or skip there: hone release stop, hone release skip",
                    )
            try:
                moved = at_share(experiment, share, now=now())
            except ValueError as error:
                raise InvalidRequest(str(error), param="share") from error
            await work.experiments.update(moved)
            detail = {"share": share, "stage": moved.stage}
            await work.audit.add(audit_record(key, "experiment.move_on", experiment_id, detail))
        await self._announce("experiment_moved_on", moved)
        return moved

    async def stop(self, key: ApiKey, experiment_id: str, reason: str) -> Experiment:
        """End an Experiment without a judgement: all traffic goes back. Raises NotFound and Conflict."""
        async with self._store.transaction() as work:
            experiment = await _running(work, experiment_id)
            stopped = _stopped(experiment, reason, {})
            await work.experiments.update(stopped)
            await work.audit.add(audit_record(key, "experiment.stop", experiment_id, {"reason": reason}))
        await self._announce("experiment_stopped", stopped)
        return stopped

    async def roll_back(
        self, experiment_id: str, reasons: Sequence[str], evidence: RampEvidence
    ) -> Experiment | None:
        """End an Experiment because of ``reasons``, freeze its candidate, keep the evidence, and tell people.

        None: somebody else has ended it already. Raises NotFound, and what the store raises.
        """
        why = "; ".join(reasons)
        kept = evidence.model_dump(mode="json")
        async with self._store.transaction() as work:
            experiment = await work.experiments.get(experiment_id, lock=True)
            if experiment.status == "stopped":
                return None
            stopped = _stopped(experiment, why, kept)
            await work.experiments.update(stopped)
            frozen = await _freeze(work, stopped, why, kept)
            await work.audit.add(_by_itself("experiment.roll_back", stopped, {"reasons": list(reasons)}))
        await self._announce("experiment_rolled_back", stopped)
        self._metrics.rollbacks.inc()
        self._webhooks.notify(_event(stopped, reasons, frozen, kept), also=experiment.notify_url)
        return stopped

    async def end(self, experiment_id: str, reason: str) -> Experiment | None:
        """End an Experiment that lost its meaning; nobody is to blame. None: it has ended already."""
        async with self._store.transaction() as work:
            experiment = await work.experiments.get(experiment_id, lock=True)
            if experiment.status == "stopped":
                return None
            stopped = _stopped(experiment, reason, {})
            await work.experiments.update(stopped)
            await work.audit.add(_by_itself("experiment.stop", stopped, {"reason": reason}))
        await self._announce("experiment_stopped", stopped)
        return stopped

    async def evidence(self, experiment_id: str) -> tuple[Experiment, RampEvidence]:
        """An Experiment and what its outcomes say so far. Raises NotFound."""
        async with self._store.reading() as work:
            experiment = await work.experiments.get(experiment_id)
            outcomes = await all_outcomes(work, experiment_id)
        return experiment, gather_evidence(experiment, outcomes, now=experiment.stopped_at or now())

    async def _announce(self, event: str, experiment: Experiment) -> None:
        shares = {arm.name: arm.share for arm in experiment.arms}
        log.info(event, experiment_id=experiment.id, policy=experiment.policy, shares=shares)
        await self._store.events.publish(EXPERIMENTS, {"experiment": experiment.id, "status": experiment.status})


async def all_outcomes(work: UnitOfWork, experiment_id: str) -> list[ArmOutcome]:
    """Every outcome of an Experiment."""
    found: list[ArmOutcome] = []
    while page := await work.arm_outcomes.after(experiment_id, cursor_of(found[-1]) if found else None, _PAGE):
        found += page
    return found


def _check_arms(experiment: Experiment) -> None:
    if experiment.kind != "ab":
        raise InvalidRequest("only Experiments of kind 'ab' split traffic", param="kind")
    names = [arm.name for arm in experiment.arms]
    if len(set(names)) != len(names):
        raise InvalidRequest("every arm needs a name of its own", param="arms")
    versions, variants = {arm.version for arm in experiment.arms}, {arm.variant for arm in experiment.arms}
    if len(versions) > 1 and len(variants) > 1:
        raise InvalidRequest(
            "arms differ either in their version or in their Variant",
            hint="run two Experiments, one after the other",
            param="arms",
        )
    if len(versions) == 1 and len(variants) == 1:
        raise InvalidRequest("the arms are the same", param="arms")


async def _running(work: UnitOfWork, experiment_id: str) -> Experiment:
    experiment = await work.experiments.get(experiment_id, lock=True)
    if experiment.kind != "ab":
        raise NotFound(f"there is no A/B Experiment '{experiment_id}'")
    if experiment.status != "running":
        raise Conflict(f"Experiment '{experiment_id}' was stopped: {experiment.stopped_because}")
    return experiment


def _stopped(experiment: Experiment, reason: str, evidence: dict[str, Any]) -> Experiment:
    return experiment.model_copy(
        update={"status": "stopped", "stopped_because": reason, "stopped_at": now(), "evidence": evidence}
    )


async def _release_of(work: UnitOfWork, policy: str, version: int) -> Release:
    try:
        return await work.releases.get(policy, version)
    except NotFound:
        release = Release(id=ids.new_id(ids.RELEASE), policy=policy, version=version)
        await work.releases.add(release)
        return release


async def _onto_ramp(
    work: UnitOfWork, policy: Policy, experiment: Experiment, version: int, reason: str | None
) -> None:
    if any(arm.version == version and arm.share >= 1.0 for arm in experiment.arms):
        raise InvalidRequest(
            "a share of 1 leaves nothing to compare with", hint="promote the version instead", param="share"
        )
    release = await _release_of(work, experiment.policy, version)
    lacking = missing_steps(release, required_steps(policy) - {ReleaseStep.RAMP})
    new = [step.value for step in lacking if step.value not in release.missing]
    if new and not (reason and reason.strip()):
        named = "; ".join(f"{step}: {why}" for step, why in lacking.items())
        raise Conflict(
            f"'{experiment.policy}@{version}' lacks what comes before live traffic: {named}",
            hint="run the steps, or give a 'reason' that stands in the Release",
        )
    if new:
        # An operator answers for what was not measured.
        update: dict[str, Any] = {"missing": tuple(sorted({*release.missing, *new})), "reason": reason}
        if release.status is ReleaseStatus.CANDIDATE:
            update["status"] = ReleaseStatus.EVALUATED
        release = await work.releases.update(release.model_copy(update=update))
    if release.status is ReleaseStatus.RAMPING:
        return
    if ReleaseStatus.RAMPING not in RELEASE_TRANSITIONS.successors(release.status):
        raise Conflict(
            f"the Release of {experiment.policy}@{version} is {release.status}: it may not have traffic",
            hint="evaluate it first; an untested candidate needs a 'reason'",
        )
    await work.releases.update(release.model_copy(update={"status": ReleaseStatus.RAMPING}))


async def _freeze(
    work: UnitOfWork, experiment: Experiment, why: str, evidence: dict[str, Any]
) -> ReleaseStatus | None:
    """Take the candidate out of the way of every automatic promotion; its status now, None where it has none."""
    _, candidate = control_and_candidate(experiment)
    policy = await work.policies.get(experiment.policy)
    if candidate.version in (0, policy.promoted_version):
        return None
    release = await _release_of(work, experiment.policy, candidate.version)
    step = {"passed": False, "experiment": experiment.id, "reasons": why, **evidence}
    allowed = RELEASE_TRANSITIONS.successors(release.status)
    targets = (ReleaseStatus.ROLLED_BACK, ReleaseStatus.REJECTED)
    status = next((one for one in targets if one in allowed), release.status)
    frozen = release.model_copy(
        update={"status": status, "reason": why, "evidence": {**release.evidence, "ramp": step}}
    )
    await work.releases.update(frozen)
    return status


def _by_itself(action: str, experiment: Experiment, detail: dict[str, object]) -> AuditRecord:
    return AuditRecord(
        id=ids.new_id(ids.AUDIT),
        tenant_id="",
        key_id=_WATCHER,
        action=action,
        subject=experiment.id,
        detail=detail,
    )


def _event(
    experiment: Experiment, reasons: Sequence[str], frozen: ReleaseStatus | None, evidence: dict[str, Any]
) -> dict[str, Any]:
    promoted, candidate = control_and_candidate(experiment)
    return {
        "type": "experiment.rolled_back",
        "experiment_id": experiment.id,
        "release_id": experiment.release_id,
        "policy": experiment.policy,
        "version": candidate.version,
        "promoted_version": promoted.version,
        "stage": experiment.stage,
        "share": candidate.share,
        "release_status": None if frozen is None else frozen.value,
        "reasons": list(reasons),
        "at": experiment.stopped_at,
        "evidence": evidence,
    }
