"""What the fleet reads and writes for a Policy whose full weights its replicas carry."""

from dataclasses import dataclass

import structlog

from core.errors import Conflict, NotFound
from core.policy import Base, Checkpoint, Policy, PolicyVersion
from core.release import RELEASE_TRANSITIONS, ReleaseStatus
from serving.fleet_records import Fence
from serving.weights.wire import FullWeights
from store.events import POLICIES
from store.store import Store
from store.unit_of_work import UnitOfWork

log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class FullState:
    """The Policy and its full-weight versions, as the store has them."""

    policy: Policy
    versions: dict[int, PolicyVersion]


class FullRecords:
    """Reads one Policy; moves its traffic back from a promoted version that no engine could carry."""

    def __init__(self, *, store: Store, base: Base, policy: str, fence: Fence | None = None) -> None:
        """``fence``: called in every transaction that writes, as in FleetRecords."""
        self._store = store
        self._base = base
        self._policy = policy
        self._fence = fence

    async def read(self) -> FullState | None:
        """The present state; None while the Policy does not exist, or belongs to another Base."""
        async with self._store.reading() as unit:
            try:
                policy = await unit.policies.get(self._policy)
            except NotFound:
                return None
            versions = await unit.versions.list(self._policy)
        if policy.base != self._base.name:
            return None
        return FullState(policy, {one.version: one for one in versions if one.kind == "full"})

    async def checkpoint(self, version: int) -> Checkpoint | None:
        """What a version points at; None while its publisher has not written it yet."""
        try:
            async with self._store.reading() as unit:
                return await unit.checkpoints.for_version(self._policy, version)
        except NotFound:
            return None

    def base_weights(self) -> FullWeights:
        """Version 0."""
        return FullWeights(
            policy=self._policy, version=0, path=self._base.path, checksum=self._base.fingerprint, probe=None
        )

    async def roll_back(self, version: int, reason: str) -> None:
        """Give the Policy's name back to the version before, if ``version`` is promoted; it was just refused."""
        try:
            async with self._store.transaction() as unit:
                if self._fence is not None:
                    await self._fence(unit)
                policy = await unit.policies.get(self._policy)
                if policy.promoted_version != version:
                    return
                before = policy.previous_version or 0
                fields = {"promoted_version": before, "previous_version": None}
                await unit.policies.update(policy.model_copy(update=fields))
                await _set_release(unit, self._policy, version, ReleaseStatus.ROLLED_BACK, reason)
                await _set_release(unit, self._policy, before, ReleaseStatus.PROMOTED, None)
        except Conflict as error:
            # An operator has moved the traffic at the same time; the next pass looks again.
            log.info("release_changed_meanwhile", policy=self._policy, version=version, error=error.message)
            return
        log.warning("rolled_back", policy=self._policy, version=version, to=before, reason=reason)
        await self._store.events.publish(POLICIES, {"policy": self._policy, "version": before})


async def _set_release(
    unit: UnitOfWork, policy: str, version: int, status: ReleaseStatus, reason: str | None
) -> None:
    try:
        release = await unit.releases.get(policy, version)
    except NotFound:
        return
    if status in RELEASE_TRANSITIONS.successors(release.status):
        fields = {"status": status, "reason": reason or release.reason}
        await unit.releases.update(release.model_copy(update=fields))
