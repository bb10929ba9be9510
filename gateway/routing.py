"""Keeps a routing table fresh: read again on store events and at short intervals."""

import asyncio
import time
from collections.abc import Collection

import structlog

from core.alias import alias_versions
from core.background import cancelled
from core.config.schema import HoneConfig
from core.deployment import Deployment
from core.errors import EngineUnavailable
from core.policy import PolicyVersion, ServingStatus
from core.variant import ModelName, Variant
from gateway.metrics import GatewayMetrics
from serving.pool import InFlight, Route, RoutingTable
from store.events import DEPLOYMENTS, POLICIES, VERSIONS
from store.store import Store
from store.unit_of_work import UnitOfWork

log = structlog.get_logger(__name__)

_ACTIVE = frozenset({ServingStatus.WANTED, ServingStatus.LIVE, ServingStatus.DRAINING})
_INACTIVE = frozenset(ServingStatus) - _ACTIVE
_RETRY_SECONDS = 0.5
_INACTIVE_SECONDS = 1.0
"""Shortest time between readings of what is not served, however many events come."""


class Routing:
    """The present routing table. While the store is away the last one read stays in use."""

    def __init__(self, *, config: HoneConfig, store: Store, metrics: GatewayMetrics) -> None:
        self._interval = config.gateway.routing_refresh_seconds
        self._sticky_bound = config.gateway.sticky_bound
        self._store = store
        self._metrics = metrics
        self._in_flight = InFlight()
        self._table: RoutingTable | None = None
        self._read_at = 0.0
        self._active: frozenset[tuple[str, int]] | None = None
        self._inactive: list[PolicyVersion] = []
        self._inactive_stale = True
        self._inactive_read_at = 0.0
        self._lock = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None

    @property
    def table(self) -> RoutingTable:
        """The last table read; raises EngineUnavailable before the first."""
        if self._table is None:
            raise EngineUnavailable("the gateway has not read what is served yet")
        return self._table

    @property
    def in_flight(self) -> InFlight:
        """Requests of this process, per Deployment."""
        return self._in_flight

    @property
    def age_seconds(self) -> float | None:
        """Seconds since the table was read; None before the first."""
        return None if self._table is None else time.monotonic() - self._read_at

    def resolve(
        self,
        model: ModelName,
        *,
        pinned_version: int | None = None,
        exclude: Collection[str] = (),
        last: str | None = None,
        variant: Variant | None = None,
    ) -> Route:
        """The replica for a request; raises as RoutingTable.resolve."""
        return self.table.resolve(model, pinned_version=pinned_version, exclude=exclude, last=last, variant=variant)

    def swapping(self, model: ModelName) -> bool:
        """Whether a replica that could answer is closed only while its weights are replaced."""
        return self.table.swapping(model)

    def deployment(self, deployment_id: str) -> Deployment | None:
        """A replica as the present table has it."""
        return next((one for one in self.table.deployments if one.id == deployment_id), None)

    def serves(self, model: ModelName) -> bool:
        """Whether a Policy or Base has this name."""
        return model.name in self.table.policies or model.name in self.table.bases

    async def refresh(self) -> None:
        """Read all of the table now. Raises what the store raises."""
        self._active = None
        await self._refresh()

    async def _refresh(self) -> None:
        async with self._lock, self._store.reading() as work:
            self._table = await self._read(work)
            self._read_at = time.monotonic()

    async def start(self) -> None:
        """Read the first table, if the store answers, and keep it fresh from then on."""
        await self._refresh_or_keep()
        self._task = asyncio.create_task(self._run(), name="routing")

    async def stop(self) -> None:
        """Refresh no more."""
        if self._task is not None:
            await cancelled(self._task)
            self._task = None

    async def _run(self) -> None:
        while True:
            try:
                async with self._store.events.subscribe([VERSIONS, POLICIES, DEPLOYMENTS]) as subscription:
                    while True:
                        # A version that was minted and refused since the last reading was never active.
                        self._inactive_stale |= await subscription.wait(self._interval)
                        await self._refresh_or_keep()
            except Exception as error:  # noqa: BLE001 - the last table stays in use whatever failed
                # Losing the events costs latency, never the table: it is read at each interval all the same.
                log.warning("routing_events_failed", error=f"{type(error).__name__}: {error}")
                await asyncio.sleep(_RETRY_SECONDS)
                await self._refresh_or_keep()

    async def _refresh_or_keep(self) -> None:
        try:
            await self._refresh()
        except Exception as error:  # noqa: BLE001 - the last table stays in use whatever failed
            self._metrics.routing_refreshes.labels("failed").inc()
            log.warning("routing_refresh_failed", error=f"{type(error).__name__}: {error}")
            await asyncio.sleep(self._interval)
        else:
            self._metrics.routing_refreshes.labels("read").inc()

    async def _read(self, work: UnitOfWork) -> RoutingTable:
        active = await work.versions.list_serving(_ACTIVE)
        keys = frozenset((version.policy, version.version) for version in active)
        now = time.monotonic()
        due = self._inactive_stale and now - self._inactive_read_at >= _INACTIVE_SECONDS
        if keys != self._active or due:
            # Versions that are not served only explain refusals: they are not read at every interval.
            self._inactive_stale = False
            self._inactive = await work.versions.list_serving(_INACTIVE)
            self._inactive_read_at = now
            self._active = keys
        deployments = await work.deployments.list()
        self._in_flight.told(deployments, time.time())
        policies, releases = await work.policies.list(), await work.releases.list()
        aliases = await work.aliases.list()
        return RoutingTable.build(
            await work.bases.list(),
            policies,
            [*self._inactive, *active],
            deployments,
            self._in_flight,
            sticky_bound=self._sticky_bound,
            aliases={policy.name: alias_versions(policy, aliases, releases) for policy in policies},
        )
