"""Fleet: launches or attaches engines, keeps them healthy, and keeps the wanted PolicyVersions loaded on them."""

import asyncio
import random
from collections.abc import Callable
from urllib.parse import urlsplit

import structlog
from prometheus_client import CollectorRegistry

from core.config.schema import HoneConfig
from core.deployment import Deployment, DeploymentStatus
from core.errors import EngineUnavailable, HoneError
from core.job import retry_delay_seconds
from core.policy import Base
from core.variant import Variant
from serving.engines.base import Engine
from serving.engines.vllm import VllmEngine
from serving.fleet_metrics import FleetMetrics
from serving.fleet_records import FleetRecords
from serving.ports import check_port
from serving.provision import Provisioner
from serving.reconciler import Reconciler
from serving.replica import Replica
from serving.speculation.acceptance import acceptance
from store.events import DEPLOYMENTS, POLICIES, VERSIONS
from store.store import Store

log = structlog.get_logger(__name__)

_SPECULATION_SECONDS = 10.0
_WARM_UP_REQUESTS = (1, 2, 8)
_WARM_UP_TOKENS = 16


def _silent(message: str) -> None:
    log.info("progress", message=message)


class Fleet:
    """The Deployments of one Base. ``start`` returns at once; ``wait_ready`` when all replicas take requests."""

    def __init__(
        self,
        *,
        config: HoneConfig,
        store: Store,
        base: Base,
        registry: CollectorRegistry,
        make_engine: Callable[[str], Engine] = VllmEngine,
        progress: Callable[[str], None] = _silent,
    ) -> None:
        self._config = config
        self._store = store
        self._base = base
        self._make_engine = make_engine
        self._progress = progress
        self._metrics = FleetMetrics(registry)
        self._records = FleetRecords(store=store, base=base, max_loaded=config.engine.max_loaded_versions)
        self._reconciler = Reconciler(config=config, base=base, records=self._records, metrics=self._metrics)
        self._replicas: list[Replica] = []
        self._loops: list[asyncio.Task[None]] = []
        self._launches: dict[str, asyncio.Task[None]] = {}
        self._speculation_read_at = 0.0

    @property
    def deployments(self) -> tuple[Deployment, ...]:
        """What the fleet runs, as of now."""
        return tuple(replica.deployment for replica in self._replicas)

    async def start(self) -> None:
        """Take over engines that an earlier fleet left running, launch or attach the others, begin to reconcile.

        Raises MachineError when engines must be launched and vLLM is not there.
        """
        async with self._store.transaction() as unit:
            await unit.bases.put(self._base)
        provisioner = Provisioner(
            config=self._config,
            store=self._store,
            base=self._base,
            make_engine=self._make_engine,
            progress=self._progress,
        )
        self._replicas = await provisioner.replicas()
        await asyncio.gather(*(replica.check() for replica in self._replicas))
        for replica in self._replicas:
            if replica.process is not None and not replica.reachable:
                if replica.ready:
                    replica.lose("it did not answer the fleet that took it over")
                self._begin_launch(replica, delay_seconds=0.0)
        await self._records.commit(self._replicas)
        self._loops = [
            asyncio.create_task(self._reconcile_loop(), name="fleet-reconcile"),
            asyncio.create_task(self._health_loop(), name="fleet-health"),
        ]

    async def wait_ready(self, timeout_seconds: float) -> None:
        """Return once every replica is ready. MachineError: a launch failed; EngineUnavailable: too late."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_seconds
        async with self._store.events.subscribe([DEPLOYMENTS]) as changes:
            while not all(replica.ready for replica in self._replicas):
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
        """End the loops and the engines that the fleet launched, or leave those for the next fleet to adopt."""
        tasks = [*self._loops, *self._launches.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*(replica.close(stop_engine=stop_engines) for replica in self._replicas))
        await self._records.commit(self._replicas)

    async def _reconcile_loop(self) -> None:
        topics = (VERSIONS, POLICIES, DEPLOYMENTS)
        async with self._store.events.subscribe(topics) as changes:
            while True:
                try:
                    await self._reconciler.run(self._replicas)
                except HoneError as error:
                    # The store or an engine is away: what is served stays served, and the next pass tries again.
                    log.error("reconcile_failed", error=error.message, code=error.code)
                await changes.wait(self._config.fleet.reconcile_seconds)

    async def _health_loop(self) -> None:
        while True:
            await asyncio.sleep(self._config.fleet.reconcile_seconds)
            idle = [replica for replica in self._replicas if replica.deployment.id not in self._launches]
            changed = any(await asyncio.gather(*(replica.check() for replica in idle)))
            for replica in idle:
                if replica.process is not None and replica.deployment.status is DeploymentStatus.UNHEALTHY:
                    delay = retry_delay_seconds(replica.attempts + 1, random.random())
                    self._begin_launch(replica, delay_seconds=delay)
            for replica in self._replicas:
                self._metrics.deployment(replica.deployment)
            try:
                await self._records.commit(self._replicas, announce=changed)
            except HoneError as error:
                log.error("heartbeat_failed", error=error.message, code=error.code)
            await self._read_speculation()

    def _begin_launch(self, replica: Replica, *, delay_seconds: float) -> None:
        task = asyncio.create_task(self._relaunch(replica, delay_seconds), name=f"launch-{replica.engine.url}")
        self._launches[replica.deployment.id] = task
        task.add_done_callback(lambda _: self._launches.pop(replica.deployment.id, None))

    async def _relaunch(self, replica: Replica, delay_seconds: float) -> None:
        """Start the engine's process; a failure leaves it unhealthy, and the health loop tries again later."""
        if replica.life > 0:
            self._metrics.restarted(replica.deployment)
        await asyncio.sleep(delay_seconds)
        try:
            if replica.process is not None:
                await replica.process.stop()
            check_port(self._config.fleet.host, urlsplit(replica.engine.url).port or 0)
            self._progress(f"starting the {replica.deployment.variant} engine at {replica.engine.url}")
            await replica.launch(timeout_seconds=self._config.engine.start_timeout_seconds, progress=self._progress)
            await self._warm_up(replica)
            await replica.check()
            await self._records.commit([replica])
        except HoneError as error:
            log.error("launch_failed", url=replica.engine.url, error=error.message, hint=error.hint)
            replica.attempts += 1
            replica.error = error
            replica.lose(error.message)

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

    async def _read_speculation(self) -> None:
        """Draft acceptance of the fast replicas, every ten seconds."""
        now = asyncio.get_running_loop().time()
        if now - self._speculation_read_at < _SPECULATION_SECONDS:
            return
        self._speculation_read_at = now
        for replica in self._replicas:
            if not replica.ready or replica.deployment.variant is not Variant.FAST:
                continue
            try:
                counters = await replica.engine.metrics()
            except HoneError as error:
                log.warning("metrics_unread", url=replica.engine.url, error=error.message)
                continue
            seen = acceptance(replica.counters, counters)
            replica.counters = counters
            if seen is not None:
                self._metrics.speculated(replica.deployment, seen)
