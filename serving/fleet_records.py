"""What the fleet reads from the store and writes to it."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass

import structlog

from core.episode import EpisodeStatus
from core.errors import Conflict, HoneError, NotFound
from core.policy import SERVING_TRANSITIONS, Base, Checkpoint, Policy, PolicyVersion, ServingStatus
from core.release import RELEASE_TRANSITIONS, ReleaseStatus
from serving.replica import Replica
from serving.wanted import Wanted, wanted_versions
from store.events import DEPLOYMENTS, VERSIONS
from store.store import Store
from store.unit_of_work import UnitOfWork

log = structlog.get_logger(__name__)

Key = tuple[str, int]
"""Policy name and version number."""

Fence = Callable[[UnitOfWork], Awaitable[None]]
"""Raises LeaseLost in a transaction whose writes must not count, because another fleet leads."""

_SERVABLE = (ServingStatus.WANTED, ServingStatus.LIVE, ServingStatus.DRAINING, ServingStatus.UNLOADED)
_EPISODES_PER_PAGE = 1_000


@dataclass(frozen=True)
class FleetState:
    """The Policies of one Base and their versions, as the store has them."""

    policies: dict[str, Policy]
    versions: dict[Key, PolicyVersion]
    wanted: Wanted

    @property
    def wanted_keys(self) -> set[Key]:
        """What replicas shall hold."""
        return {(version.policy, version.version) for version in self.wanted.load}


@dataclass(frozen=True)
class ServingChange:
    """A version's new serving status, with the reason of a refusal."""

    status: ServingStatus
    reason: str | None = None
    swap_seconds: float | None = None
    """Of a version that goes live: from the decision to load until the slowest replica's probe had passed."""


class FleetRecords:
    """The fleet's door to the store. Writes of replicas are put in order by one lock."""

    def __init__(self, *, store: Store, base: Base, max_loaded: int, fence: Fence | None = None) -> None:
        self._store = store
        self._base = base
        self._max_loaded = max_loaded
        self._fence = fence
        self._writing = asyncio.Lock()
        self._checkpoints: dict[Key, Checkpoint] = {}

    async def read(self) -> FleetState:
        """The present state of this Base's Policies."""
        async with self._store.reading() as unit:
            policies = {
                policy.name: policy for policy in await unit.policies.list() if policy.base == self._base.name
            }
            versions = {
                (version.policy, version.version): version
                for version in await unit.versions.list_serving(_SERVABLE)
                if version.policy in policies
            }
        wanted = wanted_versions(policies.values(), versions.values(), max_loaded=self._max_loaded)
        kept = {(version.policy, version.version) for version in wanted.load}
        self._checkpoints = {key: value for key, value in self._checkpoints.items() if key in kept}
        return FleetState(policies=policies, versions=versions, wanted=wanted)

    async def checkpoint(self, version: PolicyVersion) -> Checkpoint | None:
        """What a version points at; None while its publisher has not written it yet."""
        key = (version.policy, version.version)
        if key not in self._checkpoints:
            try:
                async with self._store.reading() as unit:
                    self._checkpoints[key] = await unit.checkpoints.for_version(*key)
            except NotFound:
                return None
        return self._checkpoints[key]

    async def busy(self, policies: Collection[str]) -> set[Key]:
        """The versions of these Policies that running Episodes are pinned to.

        Client Episodes are pinned to none: their gateways go on with the promoted version when theirs has left.
        """
        found: set[Key] = set()
        async with self._store.reading() as unit:
            for policy in policies:
                before = None
                while True:
                    page = await unit.episodes.list(
                        policy=policy, status=EpisodeStatus.RUNNING, limit=_EPISODES_PER_PAGE, before=before
                    )
                    found |= {(policy, episode.version) for episode in page if episode.version is not None}
                    if len(page) < _EPISODES_PER_PAGE:
                        break
                    before = page[-1].id
        return found

    @asynccontextmanager
    async def writing(self) -> AsyncIterator[UnitOfWork]:
        """A transaction of the leading fleet; LeaseLost, and nothing written, when another one leads by now."""
        async with self._store.transaction() as unit:
            if self._fence is not None:
                await self._fence(unit)
            yield unit

    async def begin(self) -> None:
        """Register the Base, as the first thing that a fleet writes."""
        async with self.writing() as unit:
            await unit.bases.put(self._base)

    async def forget(self, deployment_ids: Collection[str]) -> None:
        """Remove Deployments; those that are gone already are no error."""
        if not deployment_ids:
            return
        async with self._writing, self.writing() as unit:
            for deployment_id in deployment_ids:
                with contextlib.suppress(NotFound):
                    await unit.deployments.remove(deployment_id)
        await self._store.events.publish(DEPLOYMENTS)

    async def _take_wishes(self, unit: UnitOfWork, replicas: Iterable[Replica]) -> None:
        """Restarts that were asked for since the last commit, which would overwrite them."""
        asked = {row.id: row.restart for row in await unit.deployments.list(self._base.name, lock=True)}
        for replica in replicas:
            restart = asked.get(replica.deployment.id)
            if restart is not None:
                replica.ask_restart(restart)

    async def commit(
        self,
        replicas: Iterable[Replica],
        serving: Mapping[Key, ServingChange] | None = None,
        *,
        announce: bool = True,
    ) -> None:
        """Store the replicas' Deployments and versions' serving status in one transaction, then announce it."""
        changes = serving or {}
        chosen = list(replicas)
        announce = announce or any(replica.changed for replica in chosen)
        async with self._writing:
            for replica in chosen:
                replica.changed = False
            try:
                async with self.writing() as unit:
                    await self._take_wishes(unit, chosen)
                    for replica in chosen:
                        await unit.deployments.put(replica.deployment)
                    for key, change in changes.items():
                        await _set_serving(unit, key, change)
            except HoneError:
                for replica in chosen:
                    replica.changed = True
                raise
        for key, change in changes.items():
            log.info("version_serving", policy=key[0], version=key[1], status=change.status.value)
            if change.status is ServingStatus.REFUSED:
                await self._reject_release(key, change.reason or "refused by the fleet")
        if announce:
            await self._store.events.publish(DEPLOYMENTS)
            if changes:
                await self._store.events.publish(VERSIONS)

    async def _reject_release(self, key: Key, reason: str) -> None:
        """A refused version cannot be released; a Release that another changes at the same time is read again."""
        for _ in range(3):
            try:
                async with self.writing() as unit:
                    release = await unit.releases.get(*key)
                    if ReleaseStatus.REJECTED not in RELEASE_TRANSITIONS.successors(release.status):
                        log.warning("release_not_rejected", policy=key[0], version=key[1], status=release.status)
                        return
                    evidence = {**release.evidence, "serving": {"refused": reason}}
                    rejected = {"status": ReleaseStatus.REJECTED, "reason": reason, "evidence": evidence}
                    await unit.releases.update(release.model_copy(update=rejected))
                    return
            except NotFound:
                return
            except Conflict as error:
                log.info("release_changed_meanwhile", policy=key[0], version=key[1], error=error.message)


async def _set_serving(unit: UnitOfWork, key: Key, change: ServingChange) -> None:
    """Read and write in one transaction: others change other fields of the same version."""
    stored = await unit.versions.get(*key, lock=True)
    if stored.serving is change.status:
        return
    if change.status not in SERVING_TRANSITIONS.successors(stored.serving):
        # The table leads from everywhere but a refusal back to wanted, and from there on.
        await unit.versions.update(stored.model_copy(update={"serving": ServingStatus.WANTED}))
    fields: dict[str, object] = {"serving": change.status, "serving_reason": change.reason}
    if change.swap_seconds is not None:
        fields["swap_seconds"] = change.swap_seconds
    await unit.versions.update(stored.model_copy(update=fields))
