"""Teller: brings decisions of releases to their webhooks, beside the controller, so a dead one delays nothing."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

import structlog

from core.noun import now
from core.release_run import ReleaseRun
from gateway.release_run.base import Notifier
from gateway.release_run.notice import notice_of
from store.leadership import Leadership
from store.store import Store

log = structlog.get_logger(__name__)

_LOOK_SECONDS = 1.0
_LONGEST_PAUSE_SECONDS = 600.0
_MOST_FAILURES = 100
"""In a row, most of a day; then this process says no more about that release."""
_RECENT = 10
"""Runs that are looked through for decisions that nobody took yet, beside the open ones."""


@dataclass
class _Patience:
    failures: int = 0
    next_at: float = 0.0


class Teller:
    """``start`` and ``stop`` run it; ``tell`` sends one release's decisions now."""

    def __init__(
        self, *, store: Store, leadership: Leadership, notifier: Notifier, clock: Callable[[], float] = now
    ) -> None:
        self._store = store
        self._leadership = leadership
        self._notifier = notifier
        self._clock = clock
        self._patience: dict[str, _Patience] = {}
        """Of releases whose webhook failed last."""
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Send whatever was decided, while this process leads."""
        self._task = asyncio.create_task(self._run(), name="release notices")

    async def stop(self) -> None:
        """End; what was not taken is sent by whoever leads next."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def tell(self, run_id: str) -> bool:
        """Send decisions that nobody outside took yet, oldest first, each at least once; whether all are taken.

        Raises LeaseLost where another process leads, and Conflict.
        """
        async with self._store.reading() as work:
            run = await work.release_runs.get(run_id)
        for decision in run.decisions:
            if decision.notified or run.plan.notify_url is None:
                continue
            if not await self._notifier.send(run.plan.notify_url, notice_of(run, decision)):
                return False
            async with self._store.transaction() as work:
                await self._leadership.fence(work)
                newest = await work.release_runs.get(run_id, lock=True)
                decisions = tuple(
                    one.model_copy(update={"notified": True}) if one.number == decision.number else one
                    for one in newest.decisions
                )
                await work.release_runs.update(newest.model_copy(update={"decisions": decisions}))
        return True

    async def round(self) -> None:
        """Tell what is due; a webhook that failed is left alone for twice as long each time."""
        async with self._store.reading() as work:
            runs = {run.id: run for run in await work.release_runs.list(limit=_RECENT)}
            runs |= {run.id: run for run in await work.release_runs.list_open()}
        self._patience = {run_id: one for run_id, one in self._patience.items() if run_id in runs}
        for run in runs.values():
            if any(not decision.notified for decision in run.decisions):
                await self._try(run)

    async def _try(self, run: ReleaseRun) -> None:
        patience = self._patience.setdefault(run.id, _Patience())
        if patience.failures >= _MOST_FAILURES or self._clock() < patience.next_at:
            return
        try:
            taken = await self.tell(run.id)
        except Exception as error:
            log.exception("release_notice_failed", release=run.id, error=str(error))
            taken = False
        if taken:
            del self._patience[run.id]
            return
        patience.failures += 1
        patience.next_at = self._clock() + min(_LONGEST_PAUSE_SECONDS, 2.0**patience.failures)
        if patience.failures == _MOST_FAILURES:
            log.error("release_notice_given_up", release=run.id, url=run.plan.notify_url, failures=patience.failures)

    async def _run(self) -> None:
        while True:
            if self._leadership.leads:
                try:
                    await self.round()
                except Exception as error:
                    log.exception("release_notices_not_read", error=str(error))
            await asyncio.sleep(_LOOK_SECONDS)
