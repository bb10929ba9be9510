"""Replica: one engine with its process (if the fleet started it) and its Deployment as the fleet knows it."""

import asyncio
from collections.abc import Callable
from typing import Any

import structlog

from core.deployment import DEPLOYMENT_TRANSITIONS, Deployment, DeploymentStatus, LoadedVersion
from core.errors import HoneError
from core.noun import now
from serving.engines.base import Engine, EngineMetrics
from serving.launcher import EngineProcess

log = structlog.get_logger(__name__)

MISSES_UNTIL_UNHEALTHY = 3


class Replica:
    """State of one engine replica; the fleet drives it and stores ``deployment``."""

    def __init__(
        self,
        *,
        deployment: Deployment,
        engine: Engine,
        process: EngineProcess | None = None,
        shares_processors: bool = False,
    ) -> None:
        self.deployment = deployment
        self.engine = engine
        self.process = process
        """None: somebody else runs the engine."""
        self.shares_processors = shares_processors
        """A CPU engine beside others on this machine: two at once take longer than one after the other."""
        self.reachable = False
        """The engine answers; versions can be loaded."""
        self.names: frozenset[str] = frozenset()
        """What the engine said that it holds, when last asked."""
        self.refused: set[str] = set()
        """Engine names that this engine refused though others serve them; forgotten when it restarts."""
        self.draining_since: dict[str, float] = {}
        """Engine name → event loop time."""
        self.life = 0
        """Grows whenever the engine is lost: what was begun in an earlier life does not count."""
        self.attempts = 0
        """Failed starts since the engine was last ready."""
        self.error: HoneError | None = None
        """Why the last start failed."""
        self.counters = EngineMetrics()
        """Engine metrics when last read."""
        self.changed = True
        """Others should know what changed since the Deployment was last stored."""
        self._misses = 0

    @property
    def ready(self) -> bool:
        """Requests are routed here."""
        return self.deployment.status is DeploymentStatus.READY

    def update(self, **fields: Any) -> None:
        """Change fields of the Deployment."""
        self.deployment = self.deployment.model_copy(update=fields)

    def move_to(self, status: DeploymentStatus, reason: str | None = None) -> None:
        """Change the status; InvalidTransition when the table forbids it."""
        if status is not self.deployment.status:
            DEPLOYMENT_TRANSITIONS.check(self.deployment.status, status)
            log.info("deployment_status", url=self.engine.url, status=status.value, reason=reason)
            self.changed = True
        self.update(status=status, status_reason=reason)

    def record(self, engine_model: str) -> LoadedVersion | None:
        """The record of a load, whatever its state."""
        return next((one for one in self.deployment.loaded if one.engine_model == engine_model), None)

    def keep(self, loaded: LoadedVersion) -> None:
        """Add or replace the record of a load."""
        others = tuple(one for one in self.deployment.loaded if one.engine_model != loaded.engine_model)
        self.update(loaded=(*others, loaded))
        self.names |= {loaded.engine_model}
        self.changed = True
        if loaded.state == "live":
            self.draining_since.pop(loaded.engine_model, None)

    def drop(self, engine_model: str) -> None:
        """Forget a load."""
        self.update(loaded=tuple(one for one in self.deployment.loaded if one.engine_model != engine_model))
        self.names -= {engine_model}
        self.changed = True
        self.draining_since.pop(engine_model, None)

    async def check(self) -> bool:
        """Ask the engine how it is; True when something changed.

        Three misses in a row, or a dead process, make it unhealthy. Loads that the engine lost are forgotten.
        """
        life = self.life
        recorded = {one.engine_model for one in self.deployment.loaded}
        names = await self._ask()
        if life != self.life:
            return False
        if names is None:
            return self._missed()
        self._misses = 0
        was_reachable, self.reachable = self.reachable, True
        # A load that ended while the question was on its way is in the records, but not in the answer.
        added = {one.engine_model for one in self.deployment.loaded} - recorded
        lost = recorded - set(names)
        self.names = frozenset(names) | added
        for engine_model in lost:
            self.drop(engine_model)
        self.update(heartbeat_at=now())
        return not was_reachable or bool(lost)

    def lose(self, reason: str) -> None:
        """The engine is away: nothing is routed here, nothing begun before counts."""
        self.life += 1
        self.reachable = False
        self._misses = 0
        self.refused.clear()
        self.names = frozenset()
        self.move_to(DeploymentStatus.UNHEALTHY, reason)

    async def launch(self, *, timeout_seconds: float, progress: Callable[[str], None]) -> None:
        """Start the engine's process anew and wait until it is healthy. Raises MachineError."""
        if self.process is None:
            raise ValueError("an attached engine is not launched")
        await self.process.stop()
        self.move_to(DeploymentStatus.STARTING)
        await self.process.start()
        self.update(pid=self.process.pid, loaded=())
        await self.process.wait_ready(self.engine, timeout_seconds=timeout_seconds, progress=progress)
        self.error = None

    async def close(self, *, stop_engine: bool) -> None:
        """End the engine's process (or leave it for the next fleet to adopt) and give back connections."""
        if stop_engine and self.process is not None:
            await self.process.stop()
        if stop_engine:
            self.update(loaded=(), pid=None)
            self.move_to(DeploymentStatus.STOPPED)
        await self.engine.close()

    def _missed(self) -> bool:
        self._misses += 1
        dead = self.process is not None and not self.process.alive()
        if not dead and self._misses < MISSES_UNTIL_UNHEALTHY:
            return False
        if self.deployment.status is DeploymentStatus.UNHEALTHY:
            return False
        self.lose("its process ended" if dead else f"no answer to {self._misses} health checks")
        return True

    async def _ask(self) -> list[str] | None:
        try:
            healthy, names = await asyncio.gather(self.engine.health(), self.engine.models())
        except HoneError as error:
            log.debug("health_check_missed", url=self.engine.url, error=error.message)
            return None
        return names if healthy and self.deployment.base in names else None
