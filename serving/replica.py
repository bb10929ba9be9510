"""Replica: one engine with its process (if the fleet started it) and its Deployment as the fleet knows it."""

import asyncio
import platform
from collections.abc import Callable
from typing import Any

import structlog

from core.deployment import (
    DEPLOYMENT_TRANSITIONS,
    MOST_SWAPS,
    Deployment,
    DeploymentStatus,
    LoadedVersion,
    Restart,
    SwapRecord,
)
from core.errors import HoneError
from core.noun import now
from serving.engines.base import Engine, EngineMetrics
from serving.launch import Launch
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
        """Engine metrics at the last reading of its load."""
        self.drafted = EngineMetrics()
        """Engine metrics at the last reading of how its draft tokens fare."""
        self.version_of_life: int | None = None
        """The life in which the engine said its version."""
        self.launched_as: Callable[[], Launch] | None = None
        """What its next start is started with; a change of that takes a restart."""
        self.home: tuple[Engine, EngineProcess] | None = None
        """For an engine that a fleet on another machine launched: what is started here once that one is lost."""
        self.closed = False
        """Drained on purpose: nothing is loaded here and no request let in until it was restarted."""
        self.given_up = False
        """The engine was lost since it last served: one of another machine is replaced here."""
        self.restarted_at = 0.0
        """When the last restart that was carried out had been asked for."""
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
        """Change the status; InvalidTransition when the table forbids it.

        A replica that is ``closed`` does not become READY, whoever began to open it before it was closed.
        """
        if status is DeploymentStatus.READY:
            if self.closed:
                log.info("stays_closed", url=self.engine.url, status=self.deployment.status.value)
                return
            self.given_up = False
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

    def note_swap(self, swap: SwapRecord) -> None:
        """Remember how a change of what it holds ended; the same failure again replaces the one before."""
        earlier = self.deployment.swaps
        if earlier and swap.outcome in ("failed", "refused") and _same(earlier[-1], swap):
            earlier = earlier[:-1]
        self.update(swaps=(*earlier, swap)[-MOST_SWAPS:])
        self.changed = True

    def ask_restart(self, restart: Restart) -> None:
        """Have it restarted when its turn comes; one that is asked for already stays as it is."""
        if self.deployment.restart is None and restart.asked_at > self.restarted_at:
            self.update(restart=restart)
            self.changed = True

    def restarted(self, restart: Restart) -> None:
        """That restart is carried out; one that was asked for later is not."""
        self.restarted_at = max(self.restarted_at, restart.asked_at)
        if self.deployment.restart is not None and self.deployment.restart.asked_at <= self.restarted_at:
            self.update(restart=None)
            self.changed = True

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
        self.update(heartbeat_at=now(), answers_to=tuple(names))
        return not was_reachable or bool(lost)

    def lose(self, reason: str) -> None:
        """The engine is away: nothing is routed here, nothing begun before counts."""
        self.life += 1
        self.given_up = True
        self.begin_life()
        self.update(load=None, answers_to=())
        self.reachable = False
        self._misses = 0
        self.refused.clear()
        self.names = frozenset()
        self.move_to(DeploymentStatus.UNHEALTHY, reason)

    def begin_life(self) -> None:
        """Forget what is counted or asked once in the life of an engine."""
        self.counters = self.drafted = EngineMetrics()
        self.version_of_life = None

    async def launch(self) -> None:
        """Start the engine's process anew; ``wait_healthy`` follows. Raises MachineError."""
        if self.process is None:
            raise ValueError("an attached engine is not launched")
        # What was begun with the process that ends here must not count for the one that follows.
        self.life += 1
        await self.process.stop()
        self.move_to(DeploymentStatus.STARTING)
        if self.launched_as is not None:
            launch = self.launched_as()
            self.process.prepare(launch)
            self.update(speculation=launch.speculation, max_model_len=launch.config.engine.max_model_len)
        await self.process.start()
        self.begin_life()
        self.update(pid=self.process.pid, loaded=(), answers_to=(), load=None, speculation_seen=None)
        self.update(speculating=True, speculating_reason=None, sameness_seen=None)
        self.changed = True

    async def wait_healthy(self, *, timeout_seconds: float, progress: Callable[[str], None]) -> None:
        """Wait until the engine that was launched, here or by an earlier fleet, answers. Raises MachineError."""
        if self.process is None:
            raise ValueError("an attached engine is not waited for")
        await self.process.wait_ready(self.engine, timeout_seconds=timeout_seconds, progress=progress)
        self.error = None

    async def take_home(self) -> None:
        """Give up an engine of another machine for a process of this one, which is yet to be started."""
        if self.home is None:
            raise ValueError("there is nothing to start in its place")
        lost = self.engine
        (self.engine, self.process), self.home = self.home, None
        self.update(url=self.engine.url, machine=platform.node(), pid=None, loaded=())
        await lost.close()

    async def close(self, *, stop_engine: bool) -> None:
        """End the engine's process (or leave it for the next fleet to adopt) and give back connections.

        An engine that somebody else runs serves on, fleet or no fleet.
        """
        if stop_engine and self.process is not None:
            await self.process.stop()
            self.update(loaded=(), answers_to=(), load=None, pid=None)
            self.move_to(DeploymentStatus.STOPPED)
        await self.engine.close()

    def _missed(self) -> bool:
        self._misses += 1
        dead = self.process is not None and not self.process.alive()
        if not dead and self._misses < MISSES_UNTIL_UNHEALTHY:
            return False
        if self.deployment.status is DeploymentStatus.UNHEALTHY and self.given_up:
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


def _same(one: SwapRecord, other: SwapRecord) -> bool:
    return (one.kind, one.policy, one.version, one.outcome) == (
        other.kind,
        other.policy,
        other.version,
        other.outcome,
    )
