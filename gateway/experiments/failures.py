"""FailureLog: requests of an Experiment that got no answer, written to the store in batches, off the request path.

A request that was answered is in the journal with its Turn. One that failed has no Turn, and is what the guardrail on
errors must see.
"""

import asyncio
import contextlib
from collections import deque
from dataclasses import dataclass

import structlog

from gateway.capture.record import ArmExposure
from gateway.experiments.metrics import ExperimentMetrics
from gateway.experiments.outcomes import Counted, count_request
from store.store import Store

log = structlog.get_logger(__name__)

_MOST_WAITING = 10_000
_BATCH = 200
_RETRY_SECONDS = 0.5
_ERROR = frozenset({"error"})


@dataclass(frozen=True, slots=True)
class _Failed:
    exposure: ArmExposure
    episode_id: str
    request_id: str
    at: float
    tenant_id: str
    events: frozenset[str]


class FailureLog:
    """Takes failed requests; ``add`` never waits. What cannot be kept is counted."""

    def __init__(self, *, store: Store, metrics: ExperimentMetrics) -> None:
        self._store = store
        self._metrics = metrics
        self._waiting: deque[_Failed] = deque()
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._task: asyncio.Task[None] | None = None

    def add(
        self,
        exposure: ArmExposure,
        episode_id: str,
        request_id: str,
        at: float,
        *,
        tenant_id: str,
        events: frozenset[str] = _ERROR,
    ) -> None:
        """Take one request that got no answer: it failed, or its client gave up, which ``events`` tells."""
        if len(self._waiting) >= _MOST_WAITING:
            self._waiting.popleft()
            self._metrics.lost.inc()
        self._waiting.append(_Failed(exposure, episode_id, request_id, at, tenant_id, events))
        self._idle.clear()
        self._wake.set()

    async def start(self) -> None:
        """Write from now on."""
        self._task = asyncio.create_task(self._run(), name="experiment failures")

    async def flush(self) -> None:
        """Wait until all that was taken is written."""
        await self._idle.wait()

    async def stop(self, timeout_seconds: float = 5.0) -> None:
        """Write what is left, for a bounded time, then stop; what is lost is counted."""
        if self._task is None:
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_seconds):
                await self._idle.wait()
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
        self._task = None
        self._metrics.lost.inc(len(self._waiting))

    async def _run(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._waiting:
                batch = [self._waiting[place] for place in range(min(_BATCH, len(self._waiting)))]
                try:
                    await self._write(batch)
                except Exception as error:  # noqa: BLE001 - tried again; nothing may end this task
                    log.warning("experiment_failures_not_written", error=f"{type(error).__name__}: {error}")
                    await asyncio.sleep(_RETRY_SECONDS)
                    continue
                for _ in range(min(len(batch), len(self._waiting))):
                    self._waiting.popleft()
            self._idle.set()

    async def _write(self, batch: list[_Failed]) -> None:
        async with self._store.transaction() as work:
            for one in batch:
                counted = Counted(
                    exposure=one.exposure,
                    episode_id=one.episode_id,
                    request_id=f"failed:{one.request_id}",
                    at=one.at,
                    events=one.events,
                    tenant_id=one.tenant_id,
                )
                await count_request(work, counted)
