"""Hot-swap of full weights on one engine replica, in the order that never hurts a request.

An engine paused in keep mode queues new requests, so a probe cannot run then. Hence: close routing → pause → apply →
clear caches → compare checksums → resume, routing still closed → probe → open routing. Requests that were in flight
go on under the new weights from a cleared cache. When the checksums or the probe fail, the version before is put back
the same way; the tokens sampled in between carry the refused version's label and never train.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol, cast

import structlog

from core.deployment import DeploymentStatus, LoadedVersion, SwapRecord
from core.errors import EngineError, EngineUnavailable, EngineUnsupported, HoneError, ProbeFailed, StoreError
from core.policy import ProbeResult
from serving.engines.base import Engine, WeightControl
from serving.full_checksums import FullChecksums
from serving.full_routing import carried_version
from serving.hotswap import DEFINITE
from serving.probe import check_probe
from serving.replica import Replica
from serving.weights.wire import FullWeights, WeightWire

log = structlog.get_logger(__name__)

UNLABELLED = "default"
"""The label of a started engine: the Base's own weights."""
_QUEUE_SECONDS = 5.0
"""Longest wait for requests that have reached the engine and not begun: those would begin under the new weights."""
_LOOK_AGAIN_SECONDS = 0.05
_RESUME_SECONDS = 5.0
"""Longest wait of a fleet that ends in mid-swap for the engine to go on."""


class SwappableEngine(Engine, WeightControl, Protocol):
    """An engine whose weights can be replaced."""


@dataclass(frozen=True)
class SwapFailed:
    """Why a replica does not carry the wanted version."""

    error: HoneError
    refused: bool
    """The version is at fault, not the moment."""
    life: int = 0
    """The replica's life in which it began."""
    interrupted: bool = False
    """The replica was taken out of service meanwhile, which says nothing about the version."""


def swappable(engine: Engine) -> SwappableEngine:
    """The engine with its WeightControl; raises EngineUnsupported when its adapter has none."""
    if not hasattr(engine, "load_weights"):
        raise EngineUnsupported(f"{engine.url} cannot replace its weights while it runs")
    return cast(SwappableEngine, engine)


class FullSwap:
    """Swaps one replica at a time; whoever calls it decides which, and to what."""

    def __init__(
        self,
        *,
        wire: WeightWire,
        checksums: FullChecksums,
        commit: Callable[[Replica], Awaitable[None]],
        max_error: float,
        settle_seconds: float,
    ) -> None:
        """``commit`` stores and announces a replica; ``settle_seconds`` is how long gateways may not know of it."""
        self._wire = wire
        self._checksums = checksums
        self._commit = commit
        self._max_error = max_error
        self._settle_seconds = settle_seconds

    async def run(
        self, replica: Replica, wanted: FullWeights, before: FullWeights | None, *, candidate: bool = False
    ) -> SwapFailed | None:
        """Bring a reachable replica to ``wanted`` and open it; None when it carries it now.

        ``before`` is put back and opened when the version is refused; None: there is nothing to put back, and the
        replica stays closed. After another failure the replica stays closed too, for the next attempt. Raises what
        ``commit`` raises.
        """
        started, life = asyncio.get_running_loop().time(), replica.life
        engine = swappable(replica.engine)
        try:
            # Reading a whole folder is not for the time in which requests are frozen.
            await self._checksums.expected(wanted)
        except DEFINITE as error:
            self._note(replica, wanted, "refused", started, error.message)
            return SwapFailed(error, refused=True, life=life)
        except StoreError as error:
            return SwapFailed(error, refused=False, life=life)
        if not _in_service(replica, life):
            return _interrupted(replica, life)
        await self._close(replica, engine, wanted)
        if not _in_service(replica, life):
            return _interrupted(replica, life)
        try:
            probe = await self._put(replica, engine, wanted)
        except DEFINITE as error:
            if replica.life != life:
                return _lost(replica, life)
            await self._refused(replica, engine, wanted, before, error, started)
            return SwapFailed(error, refused=True, life=life)
        except (EngineError, StoreError) as error:
            log.warning("full_swap_failed", url=replica.engine.url, version=wanted.label, error=error.message)
            self._note(replica, wanted, "failed", started, error.message)
            return SwapFailed(error, refused=False, life=life)
        if replica.life != life:
            return _lost(replica, life)
        self._carry(replica, wanted, probe, started, candidate=candidate)
        self._note(replica, wanted, "live", started)
        if not await self._open(replica):
            return _interrupted(replica, life)
        seconds = asyncio.get_running_loop().time() - started
        log.info("full_weights_live", url=replica.engine.url, version=wanted.label, seconds=round(seconds, 3))
        return None

    async def _close(self, replica: Replica, engine: SwappableEngine, wanted: FullWeights) -> None:
        """Close routing, and wait until every gateway has seen it and what it sent last has begun."""
        if replica.ready:
            replica.move_to(DeploymentStatus.SWAPPING, f"taking {wanted.label}")
        elif replica.deployment.status is not DeploymentStatus.SWAPPING or not replica.changed:
            # Gateways send nothing here.
            return
        await self._commit(replica)
        await asyncio.sleep(self._settle_seconds)
        deadline = asyncio.get_running_loop().time() + _QUEUE_SECONDS
        try:
            while True:
                counted = await engine.metrics()
                if counted.waiting == 0 or asyncio.get_running_loop().time() > deadline:
                    return
                await asyncio.sleep(_LOOK_AGAIN_SECONDS)
        except EngineError as error:
            # The wait only makes fewer Turns straddle; whether the engine lives shows at the next step.
            log.warning("queue_unread", url=engine.url, error=error.message)

    async def _put(self, replica: Replica, engine: SwappableEngine, weights: FullWeights) -> ProbeResult:
        """Pause, apply, clear, compare, resume, probe. Raises what any of them raises, whatever state that leaves."""
        identity = await self._replace(engine, weights)
        if weights.probe is None:
            return _unscored(identity)
        result = await check_probe(engine, replica.deployment.base, weights.probe, self._max_error)
        if not result.passed:
            raise ProbeFailed(f"'{weights.label}' on {engine.url} failed its probe: {result.reason}")
        await self._checksums.proven(engine, weights)
        return result.model_copy(update={"reason": f"{result.reason}; {identity}"})

    async def _replace(self, engine: SwappableEngine, weights: FullWeights) -> str:
        """Pause, apply, resume; what the identity of the weights rests on.

        A fleet that is ended here leaves the engine running, not frozen: requests in it go on with routing closed,
        under a label that proves none of their tokens.
        """
        try:
            await engine.pause()
            identity = await self._apply(engine, weights)
            await engine.resume()
        except asyncio.CancelledError:
            await asyncio.shield(asyncio.create_task(_go_on(engine), name="swap-go-on"))
            raise
        return identity

    async def _apply(self, engine: SwappableEngine, weights: FullWeights) -> str:
        """Load into the paused engine unless it holds these weights; what their identity rests on."""
        label = await engine.weights_label()
        started_with = label == UNLABELLED and weights.version == 0
        if label == weights.label or started_with:
            # What a fleet that was killed had done, or an engine that has just started.
            fresh = started_with and await self._checksums.expected(weights) is None
            if fresh or await self._checksums.holds(engine, weights):
                await engine.clear_caches()
                return "the engine holds it already"
        known = label == weights.label or await self._checksums.expected(weights) is not None
        before = {} if known else await engine.weight_checksums()
        await self._wire.apply(engine, weights)
        await engine.clear_caches()
        return await self._checksums.verify(engine, weights, before)

    async def _refused(
        self,
        replica: Replica,
        engine: SwappableEngine,
        wanted: FullWeights,
        before: FullWeights | None,
        error: HoneError,
        started: float,
    ) -> None:
        """Put the version before back; an engine that cannot even do that is given up."""
        log.warning("full_weights_refused", url=engine.url, version=wanted.label, error=error.message)
        if before is None:
            self._note(replica, wanted, "refused", started, error.message)
            return
        life = replica.life
        try:
            identity = await self._replace(engine, before)
        except HoneError as another:
            log.error("rollback_failed", url=engine.url, version=before.label, error=another.message)
            self._note(replica, wanted, "failed", started, f"{error.message}; putting back: {another.message}")
            replica.lose(f"'{before.label}' could not be put back: {another.message}")
            return
        if replica.life != life:
            return
        if before.version != carried_version(replica.deployment):
            self._carry(replica, before, _unscored(identity), started, candidate=False)
        self._note(replica, wanted, "rolled_back", started, error.message)
        await self._open(replica)

    async def _open(self, replica: Replica) -> bool:
        """Let requests in; False for a replica that was drained for a restart meanwhile, which stays closed."""
        if replica.closed:
            return False
        replica.attempts = 0
        replica.move_to(DeploymentStatus.READY)
        await self._commit(replica)
        return True

    def _carry(
        self, replica: Replica, weights: FullWeights, probe: ProbeResult, started: float, *, candidate: bool
    ) -> None:
        record = None
        if weights.version != 0:
            record = LoadedVersion(
                policy=weights.policy,
                version=weights.version,
                engine_model=replica.deployment.base,
                checksum=weights.checksum,
                candidate=candidate,
                swap_seconds=asyncio.get_running_loop().time() - started,
                probe=probe,
            )
        replica.update(weights=record)
        replica.changed = True

    def _note(
        self, replica: Replica, weights: FullWeights, outcome: str, started: float, reason: str | None = None
    ) -> None:
        replica.note_swap(
            SwapRecord.model_validate(
                {
                    "kind": "full",
                    "policy": weights.policy,
                    "version": weights.version,
                    "outcome": outcome,
                    "reason": reason,
                    "seconds": asyncio.get_running_loop().time() - started,
                }
            )
        )


async def _go_on(engine: SwappableEngine) -> None:
    try:
        async with asyncio.timeout(_RESUME_SECONDS):
            await engine.resume()
    except (HoneError, TimeoutError) as error:
        log.warning("left_paused", url=engine.url, error=str(error))


def _in_service(replica: Replica, life: int) -> bool:
    """Whether a swap may go on: the replica was neither drained for a restart nor lost since it was begun."""
    return not replica.closed and replica.life == life


def _interrupted(replica: Replica, life: int) -> SwapFailed:
    error = EngineUnavailable(f"{replica.engine.url} was taken out of service before the swap had ended")
    return SwapFailed(error, refused=False, life=life, interrupted=True)


def _lost(replica: Replica, life: int) -> SwapFailed:
    return SwapFailed(EngineUnavailable(f"{replica.engine.url} was lost during the swap"), refused=False, life=life)


def _unscored(identity: str) -> ProbeResult:
    """For weights that no probe was run on: what their identity rests on."""
    return ProbeResult(passed=True, error=0.0, parent_distance=0.0, base_distance=0.0, reason=identity)
