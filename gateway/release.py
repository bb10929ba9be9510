"""Promotion and rollback: what a Release needs before traffic reaches it, and the one place that moves traffic."""

from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

import structlog

from core import ids
from core.access import ApiKey
from core.errors import Conflict, InvalidRequest, NotFound, VersionNotServed
from core.policy import Policy, PolicyVersion, ServingStatus
from core.release import RELEASE_POLICIES, RELEASE_TRANSITIONS, Release, ReleaseStatus, ReleaseStep
from gateway.audit import audit_record
from store.events import POLICIES
from store.store import Store
from store.unit_of_work import UnitOfWork

log = structlog.get_logger(__name__)

Alongside = Callable[[UnitOfWork], Awaitable[None]]


@dataclass(frozen=True)
class TrafficMove:
    """A decided change of which version a Policy's name means: every row that it writes."""

    policy: Policy
    """As it shall be stored."""
    promoted: Release
    """The Release that gets the traffic."""
    displaced: Release | None
    """The Release that loses it."""


def required_steps(policy: Policy) -> frozenset[ReleaseStep]:
    """What the Policy's release policy asks for; raises InvalidRequest for a name that nobody defined."""
    steps = RELEASE_POLICIES.get(policy.release_policy)
    if steps is None:
        known = ", ".join(sorted(RELEASE_POLICIES))
        raise InvalidRequest(f"there is no release policy '{policy.release_policy}'", hint=f"known: {known}")
    return steps


def missing_steps(release: Release, required: Collection[ReleaseStep]) -> dict[ReleaseStep, str]:
    """Required steps without sufficient evidence, each with what is wrong."""
    missing = {}
    for step in sorted(required):
        evidence = release.evidence.get(step.value)
        if not evidence:
            missing[step] = "no evidence"
        elif step is ReleaseStep.EVALUATION and not proves_better(evidence):
            missing[step] = "the evaluation does not prove the version better than its baseline"
        elif isinstance(evidence, Mapping) and evidence.get("passed") is False:
            missing[step] = "the step was run and did not pass"
    return missing


def proves_better(evidence: Any) -> bool:
    """Whether an evaluation's evidence says that the interval of the gain lies wholly above zero."""
    if not isinstance(evidence, Mapping):
        return False
    if "proven_better" in evidence:
        return evidence["proven_better"] is True
    gain = evidence.get("gain")
    low = gain.get("low") if isinstance(gain, Mapping) else None
    return isinstance(low, int | float) and low > 0.0


def decide_promotion(
    policy: Policy,
    version: PolicyVersion,
    release: Release,
    current: Release | None,
    *,
    skip: Collection[ReleaseStep] = (),
    reason: str | None = None,
) -> TrafficMove:
    """The move that promotes ``version``.

    Raises Conflict that names missing evidence, InvalidTransition, VersionNotServed for a version that is not
    live, and InvalidRequest for a skipped step without a reason.
    """
    if policy.promoted_version == version.version:
        raise Conflict(f"'{version.label}' is promoted already")
    if release.status is ReleaseStatus.ROLLED_BACK and not (reason and reason.strip()):
        raise Conflict(
            f"'{version.label}' was rolled back: {release.reason or 'no reason recorded'}",
            hint="a candidate that was frozen is promoted again only with a 'reason'",
        )
    if skip and not (reason and reason.strip()):
        raise InvalidRequest("a skipped step needs a reason", param="reason")
    missing = missing_steps(release, required_steps(policy))
    lacking = {step: why for step, why in missing.items() if step not in skip}
    if lacking:
        named = "; ".join(f"{step}: {why}" for step, why in lacking.items())
        raise Conflict(
            f"'{version.label}' lacks what release policy '{policy.release_policy}' requires: {named}",
            hint="run the steps, or name them in 'skip' with a 'reason'",
        )
    _check_live(version)
    return _move(
        policy,
        promoted=release.model_copy(
            update={"missing": tuple(step.value for step in missing), "reason": reason or release.reason}
        ),
        displaced=current,
        displaced_status=ReleaseStatus.RETIRED,
        previous_version=policy.promoted_version,
    )


def decide_rollback(
    policy: Policy, version: PolicyVersion, previous: Release, current: Release | None, *, reason: str | None = None
) -> TrafficMove:
    """The move back to ``version``, the one that was promoted before; raises VersionNotServed if it is not live."""
    _check_live(version)
    displaced = None if current is None else current.model_copy(update={"reason": reason or "rolled back"})
    return _move(
        policy,
        promoted=previous,
        displaced=displaced,
        displaced_status=ReleaseStatus.ROLLED_BACK,
        previous_version=None,
    )


class ReleaseDesk:
    """Carries moves out: one transaction each, with its audit record; two at once cannot both win."""

    def __init__(self, *, store: Store) -> None:
        self._store = store

    async def promote(
        self,
        key: ApiKey,
        name: str,
        number: int,
        *,
        skip: Collection[ReleaseStep],
        reason: str | None,
        alongside: Alongside | None = None,
        expected: int | None = None,
    ) -> TrafficMove:
        """Give the traffic of Policy ``name`` to version ``number``; raises as decide_promotion, and NotFound.

        ``expected``: the promoted version that the decision was made against; Conflict where it is another by now.

        ``alongside`` writes in the same transaction, before the move: if it raises, nothing is moved.
        """
        async with self._store.transaction() as work:
            if alongside is not None:
                await alongside(work)
            policy = await work.policies.get(name, lock=True)
            if expected is not None and policy.promoted_version != expected:
                raise Conflict(
                    f"'{name}@{policy.promoted_version}' is promoted by now, not @{expected}",
                    hint="compare with the promoted version again",
                )
            version = await work.versions.get(name, number)
            release = await release_of(work, policy, number)
            current = await release_of(work, policy, policy.promoted_version)
            move = decide_promotion(policy, version, release, current, skip=skip, reason=reason)
            detail = {
                "version": number,
                "previous_version": policy.promoted_version,
                "reason": reason,
                "missing": list(move.promoted.missing),
            }
            move = await _carry_out(work, move)
            await work.audit.add(audit_record(key, "policy.promote", name, detail))
        await self._announce("promoted", move)
        return move

    async def rollback(self, key: ApiKey, name: str, *, reason: str | None) -> TrafficMove:
        """Give the traffic back to the version promoted before; raises Conflict if there is none."""
        async with self._store.transaction() as work:
            policy = await work.policies.get(name, lock=True)
            if policy.previous_version is None:
                raise Conflict(f"'{name}' has no earlier version to roll back to")
            version = await work.versions.get(name, policy.previous_version)
            previous = await release_of(work, policy, policy.previous_version)
            current = await release_of(work, policy, policy.promoted_version)
            move = decide_rollback(policy, version, previous, current, reason=reason)
            detail = {
                "version": policy.previous_version,
                "rolled_back_version": policy.promoted_version,
                "reason": reason,
            }
            move = await _carry_out(work, move)
            await work.audit.add(audit_record(key, "policy.rollback", name, detail))
        await self._announce("rolled_back", move)
        return move

    async def _announce(self, event: str, move: TrafficMove) -> None:
        version = move.policy.promoted_version
        log.info(event, policy=move.policy.name, version=version, previous=move.policy.previous_version)
        await self._store.events.publish(POLICIES, {"policy": move.policy.name, "version": version})


def check_files(version: PolicyVersion) -> None:
    """Raise Conflict for a version whose checkpoint folder was deleted: no replica can load it again."""
    if version.files_removed_at is not None:
        raise Conflict(f"the files of '{version.label}' were deleted", hint="choose a version whose files are kept")


def base_release(policy: str) -> Release:
    """The Release of version 0: the Base is what a new Policy's name means from the start."""
    return Release(
        id=ids.new_id(ids.RELEASE),
        policy=policy,
        version=0,
        status=ReleaseStatus.PROMOTED,
        reason="the Base of a new Policy",
    )


def _move(
    policy: Policy,
    *,
    promoted: Release,
    displaced: Release | None,
    displaced_status: ReleaseStatus,
    previous_version: int | None,
) -> TrafficMove:
    if displaced is not None:
        RELEASE_TRANSITIONS.check(displaced.status, displaced_status)
        displaced = displaced.model_copy(update={"status": displaced_status})
    RELEASE_TRANSITIONS.check(promoted.status, ReleaseStatus.PROMOTED)
    return TrafficMove(
        policy=policy.model_copy(update={"promoted_version": promoted.version, "previous_version": previous_version}),
        promoted=promoted.model_copy(update={"status": ReleaseStatus.PROMOTED}),
        displaced=displaced,
    )


def _check_live(version: PolicyVersion) -> None:
    check_files(version)
    # A replica carries one version of full weights: the promoted one is brought to it by being promoted, and until
    # it is there, probed, the one before answers. One that then fails is refused, and the promotion taken back.
    if version.kind == "full" and version.serving is not ServingStatus.REFUSED:
        return
    if version.serving is not ServingStatus.LIVE:
        why = f": {version.serving_reason}" if version.serving_reason else ""
        raise VersionNotServed(f"'{version.label}' is {version.serving}, not live{why}")


async def release_of(work: UnitOfWork, policy: Policy, number: int) -> Release:
    """The Release of a version; one without a row gets it now, in the status that the Policy implies."""
    try:
        return await work.releases.get(policy.name, number)
    except NotFound:
        release = Release(
            id=ids.new_id(ids.RELEASE), policy=policy.name, version=number, status=_implied_status(policy, number)
        )
        await work.releases.add(release)
        return release


def _implied_status(policy: Policy, number: int) -> ReleaseStatus:
    if number == policy.promoted_version:
        return ReleaseStatus.PROMOTED
    # The Base needs no gate of its own, and what was promoted before is retired.
    return ReleaseStatus.RETIRED if number in (0, policy.previous_version) else ReleaseStatus.CANDIDATE


async def _carry_out(work: UnitOfWork, move: TrafficMove) -> TrafficMove:
    displaced = None if move.displaced is None else await work.releases.update(move.displaced)
    promoted = await work.releases.update(move.promoted)
    await work.policies.update(move.policy)
    return TrafficMove(policy=move.policy, promoted=promoted, displaced=displaced)
