"""Sharing: the counters that all replicas share, and this replica's own while those cannot be reached."""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence

import structlog

from core.errors import StoreError
from gateway.limits.line import BUDGETS, Line
from gateway.metrics import GatewayMetrics
from store.counters import Change, Counters, Reservation
from store.local_counters import Ledger, LocalCounters

log = structlog.get_logger(__name__)

_RETRY_SECONDS = 1.0
"""How often shared counters that did not answer are tried again."""


class Sharing:
    """Talks to the shared counters; never raises StoreError.

    While they are away, each replica counts by itself up to its share of a limit: the limit by the number of
    replicas that were alive when it was last known. Processes of one gateway that share no counters at all divide
    each limit by their number from the start.
    """

    def __init__(
        self,
        *,
        counters: Counters,
        lines: Mapping[str, Line],
        metrics: GatewayMetrics,
        processes: int = 1,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._shared = counters
        self._apart = processes if isinstance(counters, LocalCounters) else 1
        """Among how many processes each limit is divided because nothing is shared."""
        self._lines = lines
        self._metrics = metrics
        self._clock = clock
        self._own: LocalCounters | None = None
        self._telling = asyncio.Lock()
        self._replicas = 1
        self._tried_at = 0.0

    @property
    def degraded(self) -> bool:
        """Whether this replica counts by itself."""
        return self._own is not None

    @property
    def telling(self) -> bool:
        """Whether something that was given back is on its way."""
        return self._telling.locked()

    async def reserve(self, wants: Sequence[tuple[Line, int, int]]) -> Reservation:
        """Ask for (line, need, floor) in one step."""
        now = self._clock()
        asks = [line.ask(need, floor, now) for line, need, floor in wants]
        if self._apart > 1:
            asks = [
                ask._replace(limit=_part(line, self._apart)) for (line, _, _), ask in zip(wants, asks, strict=True)
            ]
        if self._own is None:
            try:
                return await self._shared.reserve(asks)
            except StoreError as error:
                await self._go_alone(error)
        own = self._own
        if own is None:
            return await self.reserve(wants)
        self._metrics.limits_degraded.inc()
        return await own.reserve(
            [ask._replace(limit=_part(line, self._replicas)) for (line, _, _), ask in zip(wants, asks, strict=True)]
        )

    async def tell(self, *, renew: bool = False) -> None:
        """Say what was given back and used up; on return, all of it was said."""
        async with self._telling:
            changes = [change for line in self._lines.values() for change in line.changes(renew=renew)]
            if not changes:
                return
            if self._own is None:
                try:
                    await self._shared.change(changes)
                except StoreError as error:
                    await self._go_alone(error)
            else:
                await self._own.change(changes)

    async def beat(self) -> None:
        """Renew what is held; come back to the shared counters when they answer again."""
        if self._own is not None:
            await self._come_back()
            return
        try:
            self._replicas = await self._shared.beat()
        except StoreError as error:
            await self._go_alone(error)
            return
        await self.tell(renew=True)

    async def _go_alone(self, error: StoreError) -> None:
        if self._own is not None:
            return
        log.warning("limits_degraded", error=error.message, replicas=self._replicas)
        self._metrics.limits_alone.set(1)
        self._tried_at = self._clock()
        self._own = LocalCounters(Ledger(clock=self._clock))
        await self._own.change(self._adopted())

    async def _come_back(self) -> None:
        if self._clock() - self._tried_at < _RETRY_SECONDS:
            return
        self._tried_at = self._clock()
        self._shared.reborn()
        try:
            self._replicas = await self._shared.beat()
        except StoreError as error:
            log.debug("limits_still_degraded", error=error.message)
            return
        # From here on grants come from the shared counters; what was held before is added to them.
        self._own = None
        try:
            await self._shared.change(self._adopted())
        except StoreError as error:
            await self._go_alone(error)
            return
        self._metrics.limits_alone.set(0)
        log.info("limits_shared_again", replicas=self._replicas)

    def _adopted(self) -> list[Change]:
        return [change for line in self._lines.values() if (change := line.adopt()) is not None]


def _part(line: Line, replicas: int) -> int:
    """What one of so many replicas may let in."""
    if line.unit in BUDGETS:
        # The store knows what the others used.
        return line.limit
    return max(min(line.limit, 1), line.limit // replicas)
