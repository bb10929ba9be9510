"""The fleet of a Base as one of several processes runs it: it acts while it leads, and waits otherwise."""

import asyncio
from collections.abc import Callable

import structlog
from prometheus_client import CollectorRegistry, Gauge

from core.config.schema import HoneConfig
from core.errors import StoreError
from core.fleet_plan import FleetPlan
from core.policy import Base
from serving.engines.base import Engine
from serving.fleet import Fleet
from store.events import FLEETS
from store.leadership import Leadership, fleet_lease, owner_name
from store.store import Store

log = structlog.get_logger(__name__)

_AGAIN_SECONDS = 1.0
_PLAN_SECONDS = 5.0
"""How often the plan is read when no event says that it changed."""


class LedFleet:
    """Waits until this process leads, runs the Fleet, abandons it when the lead is lost, and waits again."""

    def __init__(
        self,
        *,
        config: HoneConfig,
        store: Store,
        base: Base,
        registry: CollectorRegistry,
        make_engine: Callable[[str], Engine] | None = None,
    ) -> None:
        self._config = config
        self._store = store
        self._base = base
        self._leads = Gauge(
            "hone_fleet_leads",
            "1 while this fleet leads for its Base, 0 while it waits for another one's lease.",
            ["base"],
            registry=registry,
        )
        self._leadership = Leadership(
            store=store, name=fleet_lease(base.name), owner=owner_name(), seconds=config.fleet.lease_seconds
        )
        self.fleet = Fleet(
            config=config,
            store=store,
            base=base,
            registry=registry,
            make_engine=make_engine,
            fence=self._leadership.fence,
        )
        self._leading: asyncio.Task[None] | None = None

    @property
    def leads(self) -> bool:
        """Whether this process leads now."""
        return self._leadership.leads

    async def start(self) -> None:
        """Begin to wait for the lead."""
        self._leads.labels(self._base.name).set(0)
        self._leading = asyncio.create_task(self._lead(), name="fleet-lead")

    async def wait(self) -> None:
        """Raises what broke the fleet, so that its supervisor can start it again."""
        if self._leading is not None:
            await asyncio.shield(self._leading)

    async def stop(self) -> None:
        """Stop leading. The leader ends the engines that it launched, unless ``fleet.keep_engines``."""
        led = self.leads
        if self._leading is not None:
            self._leading.cancel()
            await asyncio.gather(self._leading, return_exceptions=True)
            self._leading = None
        if led:
            await self.fleet.stop(stop_engines=not self._config.fleet.keep_engines)
        else:
            await self.fleet.abandon()
        await self._leadership.release()
        self._leads.labels(self._base.name).set(0)

    async def _lead(self) -> None:
        while True:
            await self._leadership.acquire()
            self._leads.labels(self._base.name).set(1)
            try:
                await self._until_lost()
            except StoreError as error:
                # The database is away while the fleet begins: nothing is broken that waiting does not mend.
                log.error("fleet_not_started", error=error.message, hint=error.hint)
            self._leads.labels(self._base.name).set(0)
            await self.fleet.abandon()
            await self._leadership.release()
            await asyncio.sleep(_AGAIN_SECONDS)

    async def _until_lost(self) -> None:
        """Run the fleet until the lead is lost, anew for each plan; raises what broke the fleet."""
        while await self._until_lost_or_planned():
            # Engines run on: those that the new plan has too are taken over as they are.
            await self.fleet.abandon()

    async def _until_lost_or_planned(self) -> bool:
        """Run the fleet until the lead is lost (False) or the store has another plan for it (True)."""
        plan = await self._plan()
        running = asyncio.create_task(self._run(plan), name="fleet")
        losing = asyncio.create_task(self._leadership.lost(), name="fleet-lost")
        planning = asyncio.create_task(self._planned_anew(plan), name="fleet-plan")
        try:
            await asyncio.wait({running, losing, planning}, return_when=asyncio.FIRST_COMPLETED)
            if running.done():
                running.result()
            return planning.done() and not losing.done() and not running.done()
        finally:
            for task in (running, losing, planning):
                task.cancel()
            await asyncio.gather(running, losing, planning, return_exceptions=True)

    async def _plan(self) -> FleetPlan | None:
        async with self._store.reading() as work:
            return await work.fleet_plans.find(self._base.name)

    async def _planned_anew(self, plan: FleetPlan | None) -> None:
        """Return once the store has another plan than ``plan``."""
        async with self._store.events.subscribe([FLEETS]) as changes:
            while True:
                try:
                    if await self._plan() != plan:
                        return
                except StoreError as error:
                    log.warning("fleet_plan_not_read", error=error.message)
                await changes.wait(_PLAN_SECONDS)

    async def _run(self, plan: FleetPlan | None) -> None:
        await self.fleet.start(plan)
        await self.fleet.wait()
