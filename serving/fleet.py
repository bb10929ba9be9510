"""Fleet: launches or attaches engines, keeps them healthy, and keeps the wanted PolicyVersions loaded on them."""

import asyncio
import random
from collections.abc import Callable
from urllib.parse import urlsplit

import structlog
from prometheus_client import CollectorRegistry

from core.config.schema import HoneConfig
from core.deployment import Deployment, DeploymentStatus, Restart
from core.errors import Conflict, EngineUnavailable, HoneError, NotFound
from core.fleet_plan import FleetPlan, planned
from core.job import retry_delay_seconds
from core.policy import Base
from core.variant import Speculation, Variant
from serving.engines.base import Engine
from serving.engines.make import engine_maker
from serving.fleet_metrics import FleetMetrics
from serving.fleet_records import Fence, FleetRecords
from serving.full_reconciler import FullReconciler, full_reconciler
from serving.launch import speculation_of
from serving.observe import observe, observe_drafts
from serving.ports import check_port
from serving.provision import Provision, Provisioner
from serving.reconciler import Reconciler, keep_off_other_weights
from serving.replica import Replica
from serving.restarts import Restarts, drain, settle_seconds
from serving.speculation.control import SpeculationControl
from serving.speculation.drafter_upkeep import DrafterUpkeep, place_drafter
from serving.speculation.metrics import SpeculationMetrics
from serving.speculation.sameness_keeper import SamenessKeeper
from store.events import DEPLOYMENTS, POLICIES, VERSIONS
from store.store import Store

log = structlog.get_logger(__name__)

_SPECULATION_SECONDS = 10.0
_WARM_UP_REQUESTS = (1, 2, 8)
_WARM_UP_TOKENS = 16


def _silent(message: str) -> None:
    log.info("progress", message=message)


class Fleet:
    """The Deployments of one Base. ``start`` returns at once; ``wait_ready`` when all replicas take requests.

    It can be started again after ``stop`` or ``abandon``.
    """

    def __init__(
        self,
        *,
        config: HoneConfig,
        store: Store,
        base: Base,
        registry: CollectorRegistry,
        make_engine: Callable[[str], Engine] | None = None,
        progress: Callable[[str], None] = _silent,
        fence: Fence | None = None,
    ) -> None:
        """``fence``: called in every transaction that writes; None where nothing else can lead."""
        self._config = config
        self._store = store
        self._base = base
        self._make_engine = make_engine or engine_maker(config.engine.kind, base.name)
        self._progress = progress
        self._metrics = FleetMetrics(registry)
        self._records = FleetRecords(
            store=store, base=base, max_loaded=config.engine.max_loaded_versions, fence=fence
        )
        self._reconciler: Reconciler | FullReconciler = (
            full_reconciler(config, store, base, self._records, self._metrics, fence)
            if config.fleet.full_weights_policy
            else Reconciler(config=config, base=base, records=self._records, metrics=self._metrics)
        )
        self._drafters = DrafterUpkeep(config=config, store=store, base=base, records=self._records)
        seen = SpeculationMetrics(registry)
        self._speculation = SpeculationControl(config=config, store=store, base=base, metrics=seen)
        self._sameness = SamenessKeeper(
            config=config, store=store, base=base, records=self._records, control=self._speculation, metrics=seen
        )
        self._restarts = Restarts(config=config, records=self._records, relaunch=self._relaunch_now)
        self._replicas: list[Replica] = []
        self._leaving: list[Replica] = []
        self._leave: asyncio.Task[None] | None = None
        self._loops: list[asyncio.Task[None]] = []
        self._launches: dict[str, asyncio.Task[None]] = {}
        self._speculation_read_at = 0.0

    @property
    def deployments(self) -> tuple[Deployment, ...]:
        """What the fleet runs, as of now."""
        return tuple(replica.deployment for replica in self._replicas)

    def speculation(self, variant: Variant) -> Speculation | None:
        """How engines of ``variant`` that are launched from now on speculate."""
        return speculation_of(self._config, variant)

    def request_restart(self, deployment_id: str, reason: str = "asked for") -> None:
        """Have an engine restarted when its turn comes: drained first, one at a time, while others cover.

        Raises NotFound, and Conflict for an engine that somebody else runs.
        """
        for replica in self._replicas:
            if replica.deployment.id == deployment_id:
                if replica.process is None:
                    raise Conflict(f"{replica.engine.url} is not run by this fleet", hint="restart it where it runs")
                replica.ask_restart(Restart(reason=reason))
                return
        raise NotFound(f"there is no Deployment {deployment_id}")

    async def start(self, plan: FleetPlan | None = None) -> None:
        """Take over engines that an earlier fleet left running, launch or attach the others, begin to reconcile.

        ``plan``: the replicas that are wanted, in place of the configuration's.
        Raises MachineError when engines must be launched and the engine's environment is not there.
        """
        await self._records.begin()
        provisioner = Provisioner(
            config=planned(self._config, plan),
            store=self._store,
            base=self._base,
            make_engine=self._make_engine,
            speculation=self.speculation,
            progress=self._progress,
        )
        provision: Provision = await provisioner.provision()
        self._replicas, self._leaving = provision.replicas, provision.leaving
        await asyncio.gather(*(replica.check() for replica in self._replicas))
        for replica in self._replicas:
            if not self._config.fleet.full_weights_policy and replica.deployment.policy is not None:
                replica.update(policy=None, weights=None)
                await keep_off_other_weights(replica)
        to_launch = [replica for replica in self._replicas if self._needs_launch(replica)]
        # Before any process is started: one that is started and not recorded yet is found by its row.
        await self._records.commit(self._replicas)
        await self._records.forget(provision.gone)
        self._leave = asyncio.create_task(self._end_leaving(), name="fleet-leave")
        for replica in to_launch:
            self._begin_launch(replica, delay_seconds=0.0)
        self._loops = [
            asyncio.create_task(self._reconcile_loop(), name="fleet-reconcile"),
            asyncio.create_task(self._health_loop(), name="fleet-health"),
            asyncio.create_task(self._restarts.run(self._replicas), name="fleet-restarts"),
            asyncio.create_task(self._drafters.run(self._replicas), name="fleet-drafters"),
            asyncio.create_task(self._speculation.run(self._replicas), name="fleet-speculation"),
            asyncio.create_task(self._sameness.run(self._replicas), name="fleet-sameness"),
        ]

    async def wait_ready(self, timeout_seconds: float) -> None:
        """Return once every replica is ready and nothing waits for its restart.

        Raises MachineError when a launch failed, EngineUnavailable when it is too late.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_seconds
        async with self._store.events.subscribe([DEPLOYMENTS]) as changes:
            while not all(one.ready and one.deployment.restart is None for one in self._replicas):
                for replica in self._replicas:
                    if replica.error is not None:
                        raise replica.error
                if loop.time() > deadline:
                    waiting = [str(one.deployment.variant) for one in self._replicas if not one.ready]
                    raise EngineUnavailable(f"not ready after {timeout_seconds:.0f} s: {', '.join(waiting)}")
                await changes.wait(0.1)

    async def wait(self) -> None:
        """Return after ``stop``; raises what broke the fleet, so that its supervisor can start it again."""
        await asyncio.gather(*self._loops)

    async def stop(self, *, stop_engines: bool = True) -> None:
        """End the loops and the engines that the fleet launched, or leave those for the next fleet to adopt.

        Engines end after the requests that they are answering, or ``fleet.drain_seconds``.
        """
        await self._end_tasks()
        if stop_engines:
            await self._close_engines()
        everything = [*self._replicas, *self._leaving]
        await asyncio.gather(*(replica.close(stop_engine=stop_engines) for replica in everything))
        try:
            await self._records.commit(self._replicas)
            if stop_engines:
                await self._records.forget([replica.deployment.id for replica in self._leaving])
        except HoneError as error:
            log.warning("stop_not_recorded", error=error.message, code=error.code)

    async def abandon(self) -> None:
        """End the loops and touch nothing else: another fleet may lead. Engines run on."""
        await self._end_tasks()
        await asyncio.gather(*(replica.engine.close() for replica in [*self._replicas, *self._leaving]))
        self._replicas, self._leaving = [], []

    @staticmethod
    def _needs_launch(replica: Replica) -> bool:
        """Whether a replica that was just provisioned is to be started, or its start seen to its end."""
        status = replica.deployment.status
        wished = replica.process is not None and replica.deployment.restart is not None
        replica.closed = wished and status is DeploymentStatus.DRAINING
        if replica.process is None or replica.reachable or replica.closed:
            return False
        if replica.ready and replica.process.alive():
            # Busy, perhaps: the health check gives it its three chances.
            return False
        if status in (DeploymentStatus.READY, DeploymentStatus.SWAPPING, DeploymentStatus.DRAINING):
            replica.lose("it did not answer the fleet that took it over")
        return True

    async def _end_tasks(self) -> None:
        tasks = [*self._loops, *self._launches.values(), *([] if self._leave is None else [self._leave])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._loops, self._leave = [], None
        if isinstance(self._reconciler, FullReconciler):
            await self._reconciler.close()

    async def _close_engines(self) -> None:
        """Let engines that are to end finish what they answer, with no new requests."""
        ready = [replica for replica in self._replicas if replica.ready and replica.process is not None]
        for replica in ready:
            replica.move_to(DeploymentStatus.DRAINING, "the fleet stops")
        try:
            await self._records.commit(ready)
        except HoneError as error:
            log.warning("stop_not_announced", error=error.message, code=error.code)
        longest = self._config.fleet.drain_seconds
        draining = [
            drain(one.engine, settle_seconds=0.0, longest_seconds=longest, alive=one.process.alive)
            for one in ready
            if one.process is not None
        ]
        await asyncio.gather(*draining)

    async def _reconcile_loop(self) -> None:
        topics = (VERSIONS, POLICIES, DEPLOYMENTS)
        async with self._store.events.subscribe(topics) as changes:
            while True:
                try:
                    await self._reconciler.run([replica for replica in self._replicas if not replica.closed])
                except HoneError as error:
                    # The store or an engine is away: what is served stays served, and the next pass tries again.
                    log.error("reconcile_failed", error=error.message, code=error.code)
                await changes.wait(self._config.fleet.reconcile_seconds)

    async def _health_loop(self) -> None:
        while True:
            await asyncio.sleep(self._config.fleet.reconcile_seconds)
            idle = [replica for replica in self._replicas if replica.deployment.id not in self._launches]
            changed = any(await asyncio.gather(*(replica.check() for replica in idle)))
            await asyncio.gather(*(observe(replica) for replica in idle if replica.reachable))
            for replica in idle:
                await self._bring_back(replica)
            self._read_speculation()
            for replica in self._replicas:
                self._metrics.deployment(replica.deployment)
            try:
                await self._records.commit(self._replicas, announce=changed)
            except HoneError as error:
                log.error("heartbeat_failed", error=error.message, code=error.code)

    async def _bring_back(self, replica: Replica) -> None:
        """Start an engine that was lost again, after a pause that grows with each failed start."""
        if replica.deployment.status is not DeploymentStatus.UNHEALTHY or replica.deployment.id in self._launches:
            return
        if replica.process is None and replica.home is not None and replica.given_up:
            log.warning("replaced_here", url=replica.engine.url, machine=replica.deployment.machine)
            await replica.take_home()
        if replica.process is not None:
            self._begin_launch(replica, delay_seconds=retry_delay_seconds(replica.attempts + 1, random.random()))

    def _begin_launch(self, replica: Replica, *, delay_seconds: float) -> asyncio.Task[None]:
        task = asyncio.create_task(self._relaunch(replica, delay_seconds), name=f"launch-{replica.engine.url}")
        self._launches[replica.deployment.id] = task
        task.add_done_callback(lambda _: self._launches.pop(replica.deployment.id, None))
        return task

    async def _relaunch_now(self, replica: Replica) -> None:
        await (self._launches.get(replica.deployment.id) or self._begin_launch(replica, delay_seconds=0.0))

    async def _relaunch(self, replica: Replica, delay_seconds: float) -> None:
        """Start the engine's process; a failure leaves it unhealthy, and the health loop tries again later."""
        if replica.life > 0:
            self._metrics.restarted(replica.deployment)
        await asyncio.sleep(delay_seconds)
        restart = replica.deployment.restart
        try:
            if not self._starting(replica):
                await self._start_process(replica)
            await replica.wait_healthy(
                timeout_seconds=self._config.engine.start_timeout_seconds, progress=self._progress
            )
            await self._warm_up(replica)
            if restart is not None:
                replica.restarted(restart)
            # Whoever closed the engine before meant the process that has ended.
            replica.closed = False
            await replica.check()
            await self._records.commit([replica])
        except HoneError as error:
            log.error("launch_failed", url=replica.engine.url, error=error.message, hint=error.hint)
            replica.attempts += 1
            replica.error = error
            replica.lose(error.message)

    def _starting(self, replica: Replica) -> bool:
        """Whether its process is one that an earlier fleet started and had no time to see healthy."""
        adopted = replica.process is not None and replica.process.alive()
        return (
            adopted and replica.deployment.status is DeploymentStatus.STARTING and replica.deployment.restart is None
        )

    async def _start_process(self, replica: Replica) -> None:
        # Engines that are to leave have ports, processors and memory that this one may need.
        if self._leave is not None:
            await asyncio.shield(self._leave)
        if replica.process is not None:
            await replica.process.stop()
        check_port(self._config.fleet.host, urlsplit(replica.engine.url).port or 0)
        self._progress(f"starting the {replica.deployment.variant} engine at {replica.engine.url}")
        place_drafter(self._config, replica)
        await replica.launch()
        await self._records.commit([replica])

    async def _end_leaving(self) -> None:
        """Drain and end the engines that are not wanted any more."""
        await asyncio.gather(*(self._end(replica) for replica in self._leaving))
        self._leaving = []

    async def _end(self, replica: Replica) -> None:
        try:
            if replica.deployment.status in (DeploymentStatus.READY, DeploymentStatus.DRAINING):
                replica.move_to(DeploymentStatus.DRAINING, "it is not wanted any more")
                await self._records.commit([replica])
                await drain(
                    replica.engine,
                    settle_seconds=settle_seconds(self._config),
                    longest_seconds=self._config.fleet.drain_seconds,
                    alive=None if replica.process is None else replica.process.alive,
                )
            await replica.close(stop_engine=True)
            self._progress(f"ended the engine of an earlier run at {replica.engine.url}")
            await self._records.forget([replica.deployment.id])
        except HoneError as error:
            log.error("leaving_engine_kept", url=replica.engine.url, error=error.message, code=error.code)

    async def _warm_up(self, replica: Replica) -> None:
        """Score a few prompts of several shapes: what the engine compiles for that, no hot-swap shall wait for."""
        for requests in _WARM_UP_REQUESTS:
            lengths = range(_WARM_UP_TOKENS, _WARM_UP_TOKENS + requests)
            scored = (replica.engine.prompt_logprobs(self._base.name, list(range(10, 10 + n))) for n in lengths)
            try:
                await asyncio.gather(*scored)
            except HoneError as error:
                # A cold engine is slow at its first hot-swap; that is no reason not to serve.
                log.warning("warm_up_failed", url=replica.engine.url, error=error.message)
                return

    def _read_speculation(self) -> None:
        """Draft acceptance of the fast replicas, every ten seconds."""
        now = asyncio.get_running_loop().time()
        if now - self._speculation_read_at < _SPECULATION_SECONDS:
            return
        self._speculation_read_at = now
        for replica in self._replicas:
            if replica.ready and replica.deployment.variant is Variant.FAST:
                seen = observe_drafts(replica)
                if seen is not None:
                    self._metrics.speculated(replica.deployment, seen)
