"""FullReconciler: brings replicas to the versions of a full-weight Policy, one replica after the other.

While one replica is closed for its swap the others answer, with the version before until they have had their turn; a
single replica's requests wait at the gateway. A version that fails anywhere is refused: its replica has put the
version before back, replicas that took it already follow, and a promotion is taken back.
"""

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path

import structlog

from core.config.load import PREFIX, environment_for_child
from core.config.schema import HoneConfig
from core.deployment import DeploymentStatus
from core.errors import (
    AdapterRejected,
    ConfigurationError,
    EngineError,
    EngineUnavailable,
    EngineUnsupported,
    StoreError,
)
from core.policy import Base, Checkpoint, Policy, PolicyVersion, ServingStatus
from serving.fleet_metrics import FleetMetrics
from serving.fleet_records import Fence, FleetRecords, ServingChange
from serving.full_checksums import FullChecksums
from serving.full_plan import full_plan, wanted_candidate
from serving.full_records import FullRecords, FullState
from serving.full_routing import carried_version
from serving.full_swap import UNLABELLED, FullSwap, SwapFailed, swappable
from serving.hotswap import DEFINITE, whole_artefact
from serving.replica import Replica
from serving.weights.full_folder import check_full_folder
from serving.weights.nccl_wire import NcclWire, SenderProcess
from serving.weights.signing import Verifier, verifier_of
from serving.weights.wire import DiskWire, FullWeights, WeightWire
from store.store import Store

log = structlog.get_logger(__name__)

_ATTEMPTS = 3
"""Swaps to a version that may fail for passing reasons before it is refused."""
_REFRESHES = 2
"""Readings of the routing table after which every gateway knows that a replica is closed."""


def check_full_artefact(
    checkpoint: Checkpoint, *, base: Base, verifier: Verifier | None = None, engine_dtype: str | None = None
) -> None:
    """Whether the Checkpoint's folder is whole, unchanged and made for ``base``. Blocking: reads every byte.

    ``engine_dtype``: as ``check_full_folder`` has it.

    Raises CorruptArtefact or AdapterRejected; StoreError as ``reading_artefact`` does.
    """
    if checkpoint.kind != "full":
        raise AdapterRejected("a LoRA version cannot stand in place of the Base's weights", hint="merge it first")
    with whole_artefact(checkpoint, base=base, verifier=verifier) as path:
        check_full_folder(path, base_path=Path(base.path), engine_dtype=engine_dtype)


class FullReconciler:
    """One pass at a time; the fleet calls ``run`` when something may have changed."""

    def __init__(
        self,
        *,
        config: HoneConfig,
        base: Base,
        records: FleetRecords,
        full_records: FullRecords,
        metrics: FleetMetrics,
        wire: WeightWire,
    ) -> None:
        self._base = base
        self._verifier = verifier_of(config)
        self._dtype = config.engine.dtype
        self._wire = wire
        self._policy = config.fleet.full_weights_policy
        self._records = records
        self._full = full_records
        self._metrics = metrics
        self._swap = FullSwap(
            wire=wire,
            checksums=FullChecksums(dtype=config.engine.dtype if config.engine.kind == "vllm" else None),
            commit=self._commit,
            max_error=config.fleet.probe_max_error,
            settle_seconds=_REFRESHES * config.gateway.routing_refresh_seconds,
        )
        self._checked: dict[int, FullWeights] = {}
        """Versions whose folders were looked at and found good."""
        self._failures: dict[int, set[tuple[str, int]]] = {}
        """Version → Deployment and life of an engine that was away, or a number below zero for each other failure."""

    async def run(self, replicas: Sequence[Replica]) -> None:
        """Give every reachable replica its version: closed ones first, so that they answer while others swap."""
        for replica in replicas:
            if replica.deployment.policy != self._policy:
                replica.update(policy=self._policy, loaded=())
                replica.changed = True
        state = await self._full.read()
        if state is None:
            await self._open_as_base(replicas)
            return
        carried = [await self._carried(replica) for replica in replicas]
        seats = [replica.reachable and not replica.closed for replica in replicas]
        plan = full_plan(state.policy, state.versions.values(), carried, seats=seats)
        turns = sorted(zip(replicas, carried, plan, strict=True), key=lambda turn: turn[0].ready)
        for replica, carries, wanted in turns:
            if not replica.reachable or replica.closed:
                continue
            if replica.ready and _tried(wanted, state.policy) and not _others_answer(replica, replicas):
                # It stays where it is until another replica really has the Policy's traffic.
                continue
            if (carries != wanted or not replica.ready) and not await self._bring(replica, wanted, state, replicas):
                # What is wanted may be another version now: the next pass plans anew.
                break
        for replica, _, wanted in turns:
            if replica.ready and carried_version(replica.deployment) == wanted:
                self._mark(replica, state.policy)
        await self._settle(replicas, state, set(plan))

    async def close(self) -> None:
        """Give back what the wire holds."""
        await self._wire.close()

    async def _carried(self, replica: Replica) -> int | None:
        """The version that a ready replica really carries, asked of the engine; None: it is not open, or is lost."""
        if not (replica.ready and replica.reachable) or replica.closed:
            return None
        life, recorded = replica.life, carried_version(replica.deployment)
        try:
            label = await swappable(replica.engine).weights_label()
        except EngineError as error:
            log.debug("label_unread", url=replica.engine.url, error=error.message)
            return recorded
        if label == f"{self._policy}@{recorded}" or (recorded == 0 and label == UNLABELLED):
            return recorded
        if replica.closed or not replica.ready or replica.life != life:
            # It was drained for a restart, or lost, while the question was on its way.
            return None
        # An engine that was restarted behind the fleet's back: nothing may go there until it is right again.
        log.warning("other_weights", url=replica.engine.url, recorded=recorded, label=label)
        replica.move_to(DeploymentStatus.SWAPPING, f"its weights are '{label}'")
        await self._commit(replica)
        return None

    async def _open_as_base(self, replicas: Sequence[Replica]) -> None:
        """The Policy does not exist yet: its version 0 is ready when it does."""
        for replica in replicas:
            if replica.reachable and not replica.ready and not replica.closed:
                await self._swap.run(replica, self._full.base_weights(), None)

    async def _bring(self, replica: Replica, wanted: int, state: FullState, replicas: Sequence[Replica]) -> bool:
        """Swap one replica; False when the others must not follow in this pass."""
        weights = await self._weights(wanted, state)
        if weights is None:
            return False
        was_ready = replica.ready
        before = await self._before(replica, wanted, state)
        if replica.closed or not replica.reachable:
            # It was drained for a restart, or lost, while folders were read.
            return False
        failed = await self._swap.run(replica, weights, before, candidate=_tried(wanted, state.policy))
        if failed is None:
            self._failures.pop(wanted, None)
            if replica.deployment.weights is not None:
                self._metrics.swapped(replica.deployment, replica.deployment.weights)
            return True
        if failed.interrupted:
            # It is drained for a restart, or lost, through no fault of the version: it is one less to answer.
            return False
        await self._commit(replica)
        self._metrics.swap_failed(failed.error.code)
        served = any(one.ready and carried_version(one.deployment) == wanted for one in replicas)
        if wanted != 0 and (failed.refused or (not served and self._too_often(wanted, replica, failed))):
            await self._refuse(wanted, failed.error.message)
            return False
        # It was closed for this, and is tried again first: until then the others stay open.
        return not was_ready

    async def _weights(self, version: int, state: FullState) -> FullWeights | None:
        """A version whose folder is good; None, and the version refused, when it is not."""
        if version == 0:
            return self._full.base_weights()
        if version in self._checked:
            return self._checked[version]
        checkpoint = await self._full.checkpoint(version)
        if checkpoint is None:
            return None
        try:
            await asyncio.to_thread(
                check_full_artefact,
                checkpoint,
                base=self._base,
                verifier=self._verifier,
                engine_dtype=self._dtype,
            )
        except DEFINITE as error:
            self._metrics.swap_failed(error.code)
            log.warning("artefact_refused", version=state.versions[version].label, error=error.message)
            await self._refuse(version, error.message)
            return None
        except StoreError as error:
            self._metrics.swap_failed(error.code)
            log.warning("artefact_unread", version=state.versions[version].label, error=error.message)
            return None
        self._checked[version] = FullWeights(
            policy=self._policy,
            version=version,
            path=checkpoint.path,
            checksum=checkpoint.checksum,
            probe=checkpoint.probe,
        )
        return self._checked[version]

    async def _before(self, replica: Replica, wanted: int, state: FullState) -> FullWeights | None:
        """What to put back: what the replica carried, or else what was promoted before, or the Base."""
        for version in (carried_version(replica.deployment), state.policy.previous_version, 0):
            known = version == 0 or version in state.versions
            if version is not None and version != wanted and known:
                weights = await self._weights(version, state)
                if weights is not None:
                    return weights
        return None

    def _too_often(self, version: int, replica: Replica, failed: SwapFailed) -> bool:
        """Whether swaps to it have failed three times, or cost three engines their life."""
        if isinstance(failed.error, EngineUnsupported | StoreError):
            # No version is at fault when an engine can take none at all, or when nothing can be read at the moment.
            return False
        seen = self._failures.setdefault(version, set())
        # An engine that is away fails every attempt until it is back: that counts once.
        number = failed.life if isinstance(failed.error, EngineUnavailable) else -1 - len(seen)
        seen.add((replica.deployment.id, number))
        log.warning("swap_will_be_tried_again", url=replica.engine.url, version=version, error=failed.error.message)
        return len(seen) >= _ATTEMPTS

    async def _refuse(self, version: int, reason: str) -> None:
        self._failures.pop(version, None)
        self._checked.pop(version, None)
        await self._records.commit([], {(self._policy, version): ServingChange(ServingStatus.REFUSED, reason)})
        await self._full.roll_back(version, reason)

    def _mark(self, replica: Replica, policy: Policy) -> None:
        """A candidate that was promoted answers for the Policy's name from now on, and one taken back does not."""
        weights = replica.deployment.weights
        if weights is not None and weights.candidate != _tried(weights.version, policy):
            replica.update(weights=weights.model_copy(update={"candidate": not weights.candidate}))
            replica.changed = True

    async def _settle(self, replicas: Sequence[Replica], state: FullState, wanted: set[int]) -> None:
        """Write which versions are live now, and which no replica carries any more."""
        carried = {
            carried_version(one.deployment): one.deployment.weights for one in replicas if one.ready and one.reachable
        }
        waiting = wanted_candidate(state.policy, state.versions.values())
        changes = {}
        for number, version in state.versions.items():
            change = _change(version, carries=number in carried, wanted=number in wanted, waits=number == waiting)
            if change is not None:
                weights = carried.get(number)
                seconds = weights.swap_seconds if change is ServingStatus.LIVE and weights is not None else None
                changes[self._policy, number] = ServingChange(change, None, seconds)
        if changes or any(replica.changed for replica in replicas):
            await self._records.commit(replicas, changes)

    async def _commit(self, replica: Replica) -> None:
        await self._records.commit([replica])


def _tried(version: int, policy: Policy) -> bool:
    """Whether a version is carried to be tried, not to answer for the Policy's name."""
    return version not in (0, policy.promoted_version, policy.previous_version)


def _others_answer(replica: Replica, replicas: Sequence[Replica]) -> bool:
    """Whether another replica has the Policy's traffic: ready, with weights that are not only tried."""
    others = [one for one in replicas if one is not replica and one.ready and one.reachable and not one.closed]
    return any(one.deployment.weights is None or not one.deployment.weights.candidate for one in others)


def _change(version: PolicyVersion, *, carries: bool, wanted: bool, waits: bool) -> ServingStatus | None:
    """The serving status that a version is to have now; None: the one that it has.

    ``waits``: it has the next seat for trying, though there may be none at the moment.
    """
    status = version.serving
    if status is ServingStatus.REFUSED:
        return None
    if carries and status is not ServingStatus.LIVE:
        return ServingStatus.LIVE
    if not carries and not wanted and waits:
        return ServingStatus.WANTED if status is ServingStatus.LIVE else None
    if not carries and not wanted and status in (ServingStatus.LIVE, ServingStatus.DRAINING):
        return ServingStatus.UNLOADED
    return None


def full_reconciler(
    config: HoneConfig,
    store: Store,
    base: Base,
    records: FleetRecords,
    metrics: FleetMetrics,
    fence: Fence | None,
) -> FullReconciler:
    """The FullReconciler of a configuration with ``fleet.full_weights_policy``."""
    return FullReconciler(
        config=config,
        base=base,
        records=records,
        full_records=FullRecords(store=store, base=base, policy=config.fleet.full_weights_policy, fence=fence),
        metrics=metrics,
        wire=make_wire(config),
    )


def make_wire(config: HoneConfig) -> WeightWire:
    """The wire that ``fleet.weight_wire`` names. Raises ConfigurationError for an engine that does not have it."""
    if config.fleet.weight_wire == "disk":
        return DiskWire()
    if config.engine.kind != "vllm":
        raise ConfigurationError("fleet.weight_wire 'nccl' is vLLM's weight transfer", hint="set it to 'disk'")
    fleet = config.fleet
    inherited = {key: value for key, value in environment_for_child(config).items() if not key.startswith(PREFIX)}
    sender = SenderProcess(python=config.engine.python or sys.executable, environment=inherited)
    return NcclWire(sender=sender, address=fleet.advertised_host or fleet.host, port=fleet.weight_wire_port)
