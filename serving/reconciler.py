"""Reconciler: brings what replicas hold in line with what the Policies want, loads before everything else.

A version becomes live when every ready replica holds it with a passed probe; until then no Deployment lists it,
so nothing is routed to it. One definite refusal refuses it everywhere, unless it is promoted and was live: then it
is tried again, ever more seldom. What is served already is never touched by a load that fails.
"""

import asyncio
import random
import re
from collections.abc import Sequence
from typing import Literal

import structlog

from core.config.schema import HoneConfig
from core.deployment import DeploymentStatus, LoadedVersion, Restart, SwapRecord
from core.errors import EngineError, EngineUnavailable, HoneError, StoreError
from core.job import retry_delay_seconds
from core.policy import Base, Checkpoint, PolicyVersion, ServingStatus
from serving.fleet_metrics import FleetMetrics
from serving.fleet_records import FleetRecords, FleetState, Key, ServingChange
from serving.full_swap import UNLABELLED, swappable
from serving.hotswap import DEFINITE, check_artefact, engine_model_name, swap_in, swap_out
from serving.replica import Replica
from serving.weights.signing import verifier_of

log = structlog.get_logger(__name__)

_ENGINE_NAME = re.compile(r"^(?P<policy>.+)\.v\d+-[0-9a-f]{8}$")
_ATTEMPTS = 3
"""Loads of a new version that may fail for passing reasons before it is refused."""


class Reconciler:
    """One pass at a time; the fleet calls ``run`` when something may have changed."""

    def __init__(self, *, config: HoneConfig, base: Base, records: FleetRecords, metrics: FleetMetrics) -> None:
        self._config = config
        self._base = base
        self._records = records
        self._metrics = metrics
        self._verifier = verifier_of(config)
        self._failures: dict[Key, set[tuple[str, int]]] = {}
        self._serving: dict[Key, ServingStatus] = {}
        """Serving status as of this pass."""
        self._left_out: frozenset[Key] = frozenset()
        self._promoted: frozenset[Key] = frozenset()
        self._again: dict[Key, tuple[int, float]] = {}
        """Promoted versions that were live and fail now → failed tries, and the event loop time of the next one."""

    async def run(self, replicas: Sequence[Replica]) -> None:
        """Load what is wanted, open replicas that are complete, then drain what is not wanted any more."""
        state = await self._records.read()
        self._serving = {key: version.serving for key, version in state.versions.items()}
        self._tell_left_out(state)
        self._promoted = frozenset((policy.name, policy.promoted_version) for policy in state.policies.values())
        self._again = {key: again for key, again in self._again.items() if key in state.wanted_keys}
        usable = [replica for replica in replicas if await _may_serve(replica)]
        new_first = sorted(state.wanted.load, key=lambda version: version.serving is ServingStatus.LIVE)
        for version in new_first:
            await self._bring(version, usable)
        await self._open(usable, state)
        await self._drain(usable, state)

    async def _bring(self, version: PolicyVersion, usable: Sequence[Replica]) -> None:
        """Load ``version`` wherever it is missing, on all replicas at once."""
        checkpoint = await self._records.checkpoint(version)
        if checkpoint is None:
            return
        name = engine_model_name(version, checkpoint)
        # One that was closed meanwhile is about to end.
        usable = [replica for replica in usable if not replica.closed]
        if self._due(version):
            for replica in usable:
                replica.refused.discard(name)
        for replica in usable:
            held = replica.record(name)
            if held is not None and held.state == "draining":
                replica.keep(held.model_copy(update={"state": "live"}))
        missing = [one for one in usable if one.record(name) is None and name not in one.refused]
        if missing:
            await self._make_room(missing)
            await self._load(version, checkpoint, missing, usable)
        await self._settle(version, name, usable)

    async def _load(
        self,
        version: PolicyVersion,
        checkpoint: Checkpoint,
        missing: Sequence[Replica],
        usable: Sequence[Replica],
    ) -> None:
        decided_at = asyncio.get_running_loop().time()
        lives = [replica.life for replica in missing]
        outcomes: list[LoadedVersion | HoneError]
        try:
            await asyncio.to_thread(
                check_artefact,
                checkpoint,
                base=self._base,
                max_rank=self._config.engine.max_lora_rank,
                verifier=self._verifier,
            )
        except HoneError as error:
            outcomes = [error] * len(missing)
        else:
            outcomes = await self._try_all(missing, version, checkpoint, decided_at)
        loaded: list[tuple[Replica, LoadedVersion]] = []
        failed: list[tuple[Replica, HoneError]] = []
        for replica, life, outcome in zip(missing, lives, outcomes, strict=True):
            if isinstance(outcome, HoneError):
                self._metrics.swap_failed(outcome.code)
                log.warning("swap_failed", url=replica.engine.url, version=version.label, error=outcome.message)
                replica.note_swap(_swap(version, outcome, asyncio.get_running_loop().time() - decided_at))
                failed.append((replica, outcome))
            elif replica.life == life:
                loaded.append((replica, outcome))
        if not await self._accept(version, engine_model_name(version, checkpoint), loaded, failed, usable):
            return
        for replica, record in loaded:
            replica.keep(record)
            replica.note_swap(_swap(version, None, record.swap_seconds))
            self._metrics.swapped(replica.deployment, record)
            log.info("version_loaded", url=replica.engine.url, version=version.label, seconds=record.swap_seconds)

    async def _try_all(
        self, missing: Sequence[Replica], version: PolicyVersion, checkpoint: Checkpoint, decided_at: float
    ) -> list[LoadedVersion | HoneError]:
        """One outcome per replica, in order: all at once, but engines that share processors in turn."""
        turn = asyncio.Lock()

        async def attempt(replica: Replica) -> LoadedVersion | HoneError:
            if not replica.shares_processors:
                return await self._try(replica, version, checkpoint, decided_at)
            async with turn:
                return await self._try(replica, version, checkpoint, decided_at)

        return list(await asyncio.gather(*(attempt(replica) for replica in missing)))

    async def _try(
        self, replica: Replica, version: PolicyVersion, checkpoint: Checkpoint, decided_at: float
    ) -> LoadedVersion | HoneError:
        try:
            return await swap_in(
                replica.engine,
                version,
                checkpoint,
                max_error=self._config.fleet.probe_max_error,
                decided_at=decided_at,
            )
        except HoneError as error:
            return error

    async def _accept(
        self,
        version: PolicyVersion,
        name: str,
        loaded: Sequence[tuple[Replica, LoadedVersion]],
        failed: Sequence[tuple[Replica, HoneError]],
        usable: Sequence[Replica],
    ) -> bool:
        """Whether the successful loads may be recorded, given the failed ones; refuses the version if not."""
        key = _key(version)
        if not failed:
            self._failures.pop(key, None)
            if not any(name in replica.refused for replica in usable):
                self._again.pop(key, None)
            return True
        definite = next((error for _, error in failed if isinstance(error, DEFINITE)), None)
        stays = key in self._promoted and version.serving is not ServingStatus.WANTED
        if stays and definite is not None:
            self._try_again_later(version, definite)
        if any(replica.record(name) is not None for replica in usable) or (stays and definite is not None):
            # Others serve it, or did: this replica goes without rather than take a served version from everybody.
            for replica, error in failed:
                if isinstance(error, DEFINITE):
                    replica.refused.add(name)
            return True
        if definite is None and (version.serving is ServingStatus.LIVE or not self._too_often(key, failed)):
            return not any(replica.ready for replica, _ in failed)
        reason = (definite or failed[0][1]).message
        await asyncio.gather(*(swap_out(replica.engine, name) for replica, _ in loaded))
        self._failures.pop(key, None)
        await self._records.commit([], {key: ServingChange(ServingStatus.REFUSED, reason)})
        self._serving[key] = ServingStatus.REFUSED
        return False

    def _try_again_later(self, version: PolicyVersion, error: HoneError) -> None:
        tries = self._again.get(_key(version), (0, 0.0))[0] + 1
        delay = retry_delay_seconds(tries, random.random())
        self._again[_key(version)] = tries, asyncio.get_running_loop().time() + delay
        log.error("promoted_version_fails", version=version.label, again_in=round(delay, 1), error=error.message)

    def _due(self, version: PolicyVersion) -> bool:
        """Whether a promoted version that failed is to be tried again where it was refused."""
        again = self._again.get(_key(version))
        return again is not None and asyncio.get_running_loop().time() >= again[1]

    def _too_often(self, key: Key, failed: Sequence[tuple[Replica, HoneError]]) -> bool:
        """Whether loading this version has failed three times, or cost three engines their life."""
        seen = self._failures.setdefault(key, set())
        for replica, error in failed:
            if isinstance(error, StoreError):
                # The folder cannot be read at the moment: however long that takes, it is not the version's fault.
                continue
            # An engine that is away fails every attempt until it is back: that counts once.
            number = replica.life if isinstance(error, EngineUnavailable) else -1 - len(seen)
            seen.add((replica.deployment.id, number))
        return len(seen) >= _ATTEMPTS

    async def _settle(self, version: PolicyVersion, name: str, usable: Sequence[Replica]) -> None:
        """Make ``version`` live, together with the Deployments that list it, once all ready replicas hold it."""
        key = _key(version)
        ready = [replica for replica in usable if replica.ready]
        held = any(replica.record(name) is not None for replica in ready)
        without = [one for one in ready if one.record(name) is None and name not in one.refused]
        if held and not without and self._serving[key] is not ServingStatus.LIVE:
            seconds = [record.swap_seconds for one in ready if (record := one.record(name)) is not None]
            await self._records.commit(usable, {key: ServingChange(ServingStatus.LIVE, None, max(seconds))})
            self._serving[key] = ServingStatus.LIVE

    async def _open(self, usable: Sequence[Replica], state: FleetState) -> None:
        """Let requests in where a replica holds everything that it can."""
        names = await self._names(state)
        for replica in usable:
            held = {one.engine_model for one in replica.deployment.loaded} | replica.refused
            if not replica.ready and not replica.closed and names.keys() <= held:
                replica.attempts = 0
                replica.move_to(DeploymentStatus.READY)
        for name, version in names.items():
            await self._settle(version, name, usable)
        if any(replica.changed for replica in usable):
            await self._records.commit(usable)

    async def _names(self, state: FleetState) -> dict[str, PolicyVersion]:
        """Engine names of what is wanted and not refused in this pass."""
        names = {}
        for version in state.wanted.load:
            checkpoint = await self._records.checkpoint(version)
            if checkpoint is not None and self._serving[_key(version)] is not ServingStatus.REFUSED:
                names[engine_model_name(version, checkpoint)] = version
        return names

    async def _drain(self, usable: Sequence[Replica], state: FleetState) -> None:
        """Close what is not wanted to new requests, and unload it once nobody can need it any more."""
        now = asyncio.get_running_loop().time()
        leaving: list[tuple[Replica, LoadedVersion]] = []
        for replica in usable:
            for record in replica.deployment.loaded:
                if (record.policy, record.version) in state.wanted_keys:
                    continue
                replica.draining_since.setdefault(record.engine_model, now)
                if record.state == "live":
                    replica.keep(record.model_copy(update={"state": "draining"}))
                leaving.append((replica, record))
        if leaving:
            busy = await self._records.busy({record.policy for _, record in leaving})
            # What has drained longest makes room first.
            leaving.sort(key=lambda one: one[0].draining_since.get(one[1].engine_model, now))
            for replica, record in leaving:
                waited = now - replica.draining_since.get(record.engine_model, now)
                pinned = (record.policy, record.version) in busy
                if self._drained(waited, pinned=pinned, crowded=self._crowded(replica)):
                    await swap_out(replica.engine, record.engine_model)
                    replica.drop(record.engine_model)
        await self._forget_orphans(usable, state)
        serving = self._retired(usable, state)
        if serving or any(replica.changed for replica in usable):
            await self._records.commit(usable, serving)

    def _retired(self, usable: Sequence[Replica], state: FleetState) -> dict[Key, ServingChange]:
        """The new status of versions that are not wanted: draining while a replica holds them, then unloaded."""
        held = {(record.policy, record.version) for one in usable for record in one.deployment.loaded}
        # A new version beyond the bound stays wanted: it is loaded when there is room.
        waiting = {_key(one) for one in state.wanted.left_out if one.serving is ServingStatus.WANTED}
        serving = {}
        for key in state.versions.keys() - state.wanted_keys - waiting:
            if self._serving[key] is ServingStatus.LIVE:
                serving[key] = ServingChange(ServingStatus.DRAINING)
            elif self._serving[key] is not ServingStatus.UNLOADED and key not in held:
                serving[key] = ServingChange(ServingStatus.UNLOADED)
        return serving

    def _drained(self, waited: float, *, pinned: bool, crowded: bool) -> bool:
        """A gateway may route by an old table for a moment, whatever Episodes say; pinned ones keep their version.

        Where a replica is ``crowded`` they keep it for ``fleet.drain_seconds``.
        """
        longest = self._config.fleet.drain_seconds
        if pinned:
            return crowded and waited >= longest
        return waited >= min(longest, max(1.0, 5 * self._config.gateway.routing_refresh_seconds))

    def _crowded(self, replica: Replica, *, more: int = 0) -> bool:
        """Whether a replica, with ``more`` versions, holds more than it is meant to."""
        return len(replica.deployment.loaded) + more > self._config.engine.max_loaded_versions

    async def _make_room(self, missing: Sequence[Replica]) -> None:
        """Before a load, unload what only Episodes keep, past its time, where there would be too much."""
        now = asyncio.get_running_loop().time()
        for replica in missing:
            for name, since in sorted(replica.draining_since.items(), key=lambda one: one[1]):
                if self._crowded(replica, more=1) and self._drained(now - since, pinned=True, crowded=True):
                    await swap_out(replica.engine, name)
                    replica.drop(name)

    async def _forget_orphans(self, usable: Sequence[Replica], state: FleetState) -> None:
        """Unload names of our Policies that nobody recorded: what a fleet that was killed had begun."""
        wanted = await self._names(state)
        for replica in usable:
            recorded = {one.engine_model for one in replica.deployment.loaded}
            for name in replica.names - recorded - wanted.keys():
                match = _ENGINE_NAME.match(name)
                if match is not None and match["policy"] in state.policies:
                    await swap_out(replica.engine, name)
                    replica.names -= {name}

    def _tell_left_out(self, state: FleetState) -> None:
        left_out = frozenset(_key(version) for version in state.wanted.left_out)
        if left_out - self._left_out:
            labels = [version.label for version in state.wanted.left_out]
            log.warning("versions_left_out", versions=labels, bound=self._config.engine.max_loaded_versions)
        self._left_out = left_out


async def keep_off_other_weights(replica: Replica) -> bool:
    """Take a replica out of service while its engine holds a Policy's full weights; whether it is the Base's.

    A launched engine is restarted, which brings the Base's weights; one that somebody else runs stays out until it
    was restarted there. An engine that cannot replace its weights has those that it was started with.
    """
    try:
        label = await swappable(replica.engine).weights_label()
    except EngineUnavailable as error:
        log.debug("label_unread", url=replica.engine.url, error=error.message)
        if replica.ready:
            replica.lose("it did not say whose weights it holds")
        return False
    except EngineError as error:
        log.debug("label_unknown", url=replica.engine.url, error=error.message)
        return True
    if label == UNLABELLED:
        return True
    reason = f"its weights are '{label}', not the Base's"
    if replica.deployment.status_reason != reason:
        log.warning("other_weights", url=replica.engine.url, label=label)
    if replica.process is None:
        replica.given_up = True
        replica.move_to(DeploymentStatus.UNHEALTHY, reason)
    elif replica.deployment.status in (DeploymentStatus.READY, DeploymentStatus.DRAINING):
        replica.closed = True
        replica.move_to(DeploymentStatus.DRAINING, reason)
        replica.ask_restart(Restart(reason=reason))
    else:
        replica.lose(reason)
    return False


async def _may_serve(replica: Replica) -> bool:
    """Whether versions may be loaded and requests let in: the engine is there, and not meant to end."""
    if not replica.reachable or replica.closed:
        return False
    return replica.ready or await keep_off_other_weights(replica)


def _swap(version: PolicyVersion, error: HoneError | None, seconds: float) -> SwapRecord:
    """How a load ended; ``error`` None: the version is live on that replica."""
    outcome: Literal["live", "refused", "failed"] = "failed"
    if error is None:
        outcome = "live"
    elif isinstance(error, DEFINITE):
        outcome = "refused"
    return SwapRecord(
        kind="lora",
        policy=version.policy,
        version=version.version,
        outcome=outcome,
        reason=None if error is None else error.message,
        seconds=seconds,
    )


def _key(version: PolicyVersion) -> Key:
    return version.policy, version.version
