"""Restarts of engines that serve: one at a time, drained first, and only while others cover.

A restart is asked for in the Deployment's row or by a part of the fleet; it stays there until the engine serves
again, so that the fleet that follows a killed one finishes it.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import structlog

from core.config.schema import HoneConfig
from core.deployment import DeploymentStatus
from core.errors import HoneError
from core.variant import Variant
from serving.engines.base import Engine
from serving.fleet_records import FleetRecords
from serving.replica import Replica

log = structlog.get_logger(__name__)

_LOOK_SECONDS = 0.1
_FAILED_READINGS = 3
"""Readings in a row that fail before an engine that is drained is asked whether it is there at all."""


def why_not_now(replica: Replica, replicas: Sequence[Replica]) -> str | None:
    """What speaks against restarting ``replica`` now; None: nothing.

    A replica that serves may go down while another of its Variant serves, or ``standard`` does in place of the last
    ``fast`` one, or any other in place of the last ``standard`` one: both give the same distribution. The only
    replica that there is may go down at any time, since waiting would change nothing. One that carries full weights
    only to try them answers nobody who asks for the Policy, and covers nothing.
    """
    status = replica.deployment.status
    if status in (DeploymentStatus.STARTING, DeploymentStatus.SWAPPING):
        return f"it is {status}"
    others = [one for one in replicas if one is not replica]
    if not replica.ready or not others:
        return None
    failed = next((one for one in others if one.attempts > 0), None)
    if failed is not None:
        return f"{failed.engine.url} did not start; the others are left alone"
    variant = replica.deployment.variant
    covering = {one.deployment.variant for one in others if one.ready and not _only_tries(one)}
    if variant in covering or Variant.STANDARD in covering or (variant is Variant.STANDARD and covering):
        return None
    return "no other replica is ready to answer in its place"


def _only_tries(replica: Replica) -> bool:
    weights = replica.deployment.weights
    return weights is not None and weights.candidate


async def drain(
    engine: Engine,
    *,
    settle_seconds: float,
    longest_seconds: float,
    alive: Callable[[], bool] | None = None,
) -> bool:
    """Wait until an engine without new requests has ended those in flight; whether it did in time.

    ``settle_seconds``: so long others may still send requests, by an older routing table. An engine whose process
    ended (``alive``), or that fails three readings in a row and is not healthy either, has none left.
    """
    loop = asyncio.get_running_loop()
    began = loop.time()
    failed = 0
    while True:
        try:
            counted = await engine.metrics()
            failed = 0
        except HoneError as error:
            failed += 1
            log.debug("drain_unread", url=engine.url, failed=failed, error=error.message)
            if alive is not None and not alive():
                return True
            if failed >= _FAILED_READINGS and not await engine.health():
                return True
            counted = None
        waited = loop.time() - began
        if counted is None:
            if waited >= longest_seconds:
                log.warning("drained_unseen", url=engine.url)
                return False
            await asyncio.sleep(_LOOK_SECONDS)
            continue
        if counted.running + counted.waiting == 0 and waited >= min(settle_seconds, longest_seconds):
            return True
        if waited >= longest_seconds:
            log.warning("drained_too_long", url=engine.url, running=counted.running, waiting=counted.waiting)
            return False
        await asyncio.sleep(_LOOK_SECONDS)


def settle_seconds(config: HoneConfig) -> float:
    """How long a gateway may route by an old table, whatever the store says."""
    return max(1.0, 5 * config.gateway.routing_refresh_seconds)


class Restarts:
    """Carries out restarts that were asked for; ``run`` is a task of the fleet."""

    def __init__(
        self, *, config: HoneConfig, records: FleetRecords, relaunch: Callable[[Replica], Awaitable[None]]
    ) -> None:
        """``relaunch`` ends the engine's process and starts it anew; a failure leaves the replica UNHEALTHY."""
        self._config = config
        self._records = records
        self._relaunch = relaunch
        self._told: dict[str, str] = {}
        """Deployment → why its restart waits, as last logged."""

    async def run(self, replicas: Sequence[Replica]) -> None:
        """Restart one replica after the other, for as long as the fleet runs."""
        while True:
            await asyncio.sleep(min(_LOOK_SECONDS, self._config.fleet.reconcile_seconds))
            try:
                await self.step(replicas)
            except HoneError as error:
                log.error("restart_failed", error=error.message, code=error.code)

    async def step(self, replicas: Sequence[Replica]) -> None:
        """The next restart whose turn has come, to its end; what was begun by an earlier fleet comes first."""
        asked = [one for one in replicas if one.deployment.restart is not None and one.process is not None]
        for replica in sorted(asked, key=lambda one: (not one.closed, one.ready)):
            reason = why_not_now(replica, replicas)
            if reason is None:
                self._told.pop(replica.deployment.id, None)
                await self._restart(replica)
                return
            if self._told.get(replica.deployment.id) != reason:
                self._told[replica.deployment.id] = reason
                log.info("restart_waits", url=replica.engine.url, reason=reason)

    async def _restart(self, replica: Replica) -> None:
        wish = replica.deployment.restart
        log.info("restarting", url=replica.engine.url, reason=None if wish is None else wish.reason)
        # Also where it does not serve: a pass of the reconciler that is under way must not open it now.
        replica.closed = True
        if replica.ready:
            replica.move_to(DeploymentStatus.DRAINING, None if wish is None else wish.reason)
            await self._records.commit([replica])
        if replica.deployment.status is DeploymentStatus.DRAINING:
            await drain(
                replica.engine,
                settle_seconds=settle_seconds(self._config),
                longest_seconds=self._config.fleet.drain_seconds,
                alive=None if replica.process is None else replica.process.alive,
            )
        await self._relaunch(replica)
        replica.closed = False
        await self._until_ready(replica)

    async def _until_ready(self, replica: Replica) -> None:
        """The next one waits until this one serves; a failed start is the health check's business from here on."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._config.engine.start_timeout_seconds
        while not replica.ready and replica.deployment.status is not DeploymentStatus.UNHEALTHY:
            if loop.time() > deadline:
                log.warning("restarted_but_not_ready", url=replica.engine.url)
                return
            await asyncio.sleep(_LOOK_SECONDS)
