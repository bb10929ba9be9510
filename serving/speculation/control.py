"""Switches speculation of fast replicas off and on: reads their speed, decides, and tells the engine and the router.

Where the engine can switch while it runs it is switched there too; in any case the Deployment says so, and requests
for ``-fast`` go to a standard replica.
"""

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, cast

import structlog

from core.config.schema import HoneConfig
from core.errors import EngineUnsupported, HoneError
from core.noun import now
from core.policy import Base
from core.speculation import TurnFigures, speculation_rows
from core.variant import Variant
from serving.engines.base import EngineMetrics
from serving.replica import Replica
from serving.speculation.acceptance import acceptance
from serving.speculation.metrics import SpeculationMetrics
from serving.speculation.speed import Speed, SpeedTable, speed, speedup
from serving.speculation.switching import MISMATCH, Reading, SwitchRule, SwitchState, decide, mismatched
from store.store import Store

log = structlog.get_logger(__name__)

_REPORT_SECONDS = 60.0
_REPORT_WINDOW_SECONDS = 3600.0


class _Switchable(Protocol):
    async def set_speculation(self, on: bool) -> None: ...


@dataclass
class _Known:
    """What is remembered of one replica."""

    life: int
    state: SwitchState
    counters: EngineMetrics
    read_at: float
    table: SpeedTable = field(default_factory=SpeedTable)
    """Its speed while it speculates."""
    speedup: float | None = None


class SpeculationControl:
    """The fleet's part that decides when fast replicas speculate; ``run`` is a task of the fleet."""

    def __init__(
        self,
        *,
        config: HoneConfig,
        store: Store,
        base: Base,
        metrics: SpeculationMetrics,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._fleet = config.fleet
        self._store = store
        self._base = base
        self._metrics = metrics
        self._clock = clock
        self._known: dict[str, _Known] = {}
        self._standard = SpeedTable()
        self._reported_at = 0.0

    async def run(self, replicas: Sequence[Replica]) -> None:
        """Look and act for as long as the fleet runs."""
        # A fleet that leads again knows of its engines what their Deployments say.
        self._known.clear()
        while True:
            await asyncio.sleep(self._fleet.speculation_seconds)
            try:
                await self.step(replicas)
                await self._report()
            except HoneError as error:
                log.error("speculation_control_failed", error=error.message, code=error.code)

    async def step(self, replicas: Sequence[Replica]) -> None:
        """One reading of every ready replica, and what follows from it."""
        ready = [replica for replica in replicas if replica.ready and replica.deployment.load is not None]
        running = [one.deployment.load.running for one in ready if one.deployment.load and _is_standard(one)]
        for replica in ready:
            await self._look_at(replica, elsewhere=float(max(running, default=0)))

    async def stop_for_mismatch(self, replica: Replica, reason: str) -> None:
        """Speculate no more on a replica that answers otherwise than standard, until its engine starts anew."""
        known = self._remembered(replica)
        await self._become(replica, known, mismatched(self._clock()), why=reason)

    async def _look_at(self, replica: Replica, *, elsewhere: float) -> None:
        known = self._remembered(replica)
        before, known.counters = known.counters, replica.counters
        began, known.read_at = known.read_at, self._clock()
        if before is replica.counters:
            return
        seen = speed(before, replica.counters, seconds=known.read_at - began)
        drafts = acceptance(before, replica.counters)
        speculates = replica.deployment.variant is Variant.FAST and known.state.on
        if seen is not None:
            if speculates:
                known.table = known.table.with_reading(seen)
            else:
                self._standard = self._standard.with_reading(seen)
        if replica.deployment.variant is not Variant.FAST:
            return
        reading = self._reading(known, seen, drafts.tokens_per_step if drafts else None, elsewhere)
        known.speedup = reading.speedup if reading is not None else known.speedup
        if self._fleet.speculation_switch:
            state = decide(known.state, reading, now=self._clock(), rule=self._rule)
            if state.on is not known.state.on:
                await self._become(replica, known, state, why=state.reason)
            known.state = state if state.on is known.state.on else known.state
        self._metrics.state(replica.engine.url, on=known.state.on, speedup=known.speedup)

    def _reading(
        self, known: _Known, seen: Speed | None, tokens_per_step: float | None, elsewhere: float
    ) -> Reading | None:
        """What a replica's state is to be judged by.

        While it is off its requests are answered by standard replicas: ``elsewhere`` is what runs on one of those.
        """
        running = seen.running if known.state.on and seen is not None else elsewhere
        if running <= 0 or (known.state.on and seen is None):
            return None
        return Reading(speedup(known.table, self._standard, running), tokens_per_step, running)

    async def _become(self, replica: Replica, known: _Known, state: SwitchState, *, why: str | None) -> None:
        """Tell the engine, then the Deployment. An engine that does not answer leaves everything as it was."""
        try:
            await cast(_Switchable, replica.engine).set_speculation(state.on)
        except (EngineUnsupported, AttributeError) as error:
            # The router alone keeps requests away then.
            log.info("speculation_not_switched_in_engine", url=replica.engine.url, error=str(error))
        except HoneError as error:
            log.warning("speculation_not_switched", url=replica.engine.url, error=error.message, code=error.code)
            if state.on:
                return
        known.state = state
        if state.on:
            # What it gained in other times would outweigh what the trial shows.
            known.table = SpeedTable()
        if replica.deployment.speculating is not state.on:
            self._metrics.switched(replica.engine.url, on=state.on)
            log.info("speculation_switched", url=replica.engine.url, on=state.on, reason=why)
        replica.update(speculating=state.on, speculating_reason=None if state.on else why)
        replica.changed = True

    def _remembered(self, replica: Replica) -> _Known:
        """What is known of a replica; an engine that started anew speculates, as one does."""
        deployment = replica.deployment
        known = self._known.get(deployment.id)
        if known is None:
            seen = deployment.sameness_seen
            differs = seen is not None and not seen.same
            reason = MISMATCH if differs else deployment.speculating_reason
            state = SwitchState(on=deployment.speculating, reason=reason, since=self._clock())
        elif known.life != replica.life or known.state.on is not deployment.speculating:
            state = SwitchState(since=self._clock())
            replica.update(speculating=True, speculating_reason=None, sameness_seen=None)
            replica.changed = True
        else:
            return known
        known = _Known(replica.life, state, replica.counters, self._clock())
        self._known[deployment.id] = known
        return known

    @property
    def _rule(self) -> SwitchRule:
        fleet = self._fleet
        return SwitchRule(off_below=fleet.speculation_off_below, on_above=fleet.speculation_on_above)

    async def _report(self) -> None:
        """Acceptance by Policy version and Domain, from recorded Turns, once a minute."""
        if self._clock() - self._reported_at < _REPORT_SECONDS:
            return
        self._reported_at = self._clock()
        async with self._store.reading() as unit:
            policies = {policy.name for policy in await unit.policies.list() if policy.base == self._base.name}
            figures = await unit.speculated.figures(since=now() - _REPORT_WINDOW_SECONDS)
        ours = policies | {self._base.name}
        self._metrics.reported(speculation_rows(_of(figures, ours)))


def _is_standard(replica: Replica) -> bool:
    return replica.deployment.variant is Variant.STANDARD


def _of(figures: Iterable[TurnFigures], policies: set[str]) -> list[TurnFigures]:
    return [figure for figure in figures if figure.policy in policies]
