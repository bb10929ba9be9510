"""ShadowLedger: writes pairs and counts of what was left out, and ends a shadow whose budget is spent.

While the store is away pairs wait here, up to a bound; counts of requests that were left out add up and are written
later. What other gateways spent is read with each writing, so that together they exceed a budget by at most what they
begin between two writings.
"""

import asyncio
from collections import Counter, deque
from collections.abc import Collection
from dataclasses import dataclass, field

import structlog

from core.background import cancelled
from core.experiment import Experiment
from core.noun import now
from core.shadow import ShadowPair
from gateway.shadow.eligible import Skip
from gateway.shadow.metrics import ShadowMetrics
from store.events import EXPERIMENTS
from store.store import Store
from store.unit_of_work import UnitOfWork

log = structlog.get_logger(__name__)

MOST_PENDING = 1_000
_AT_ONCE = 100
_LONGEST_WAIT_SECONDS = 10.0
_STOP_SECONDS = 2.0


@dataclass(slots=True)
class _Account:
    """What is known of one shadow's spending."""

    stored: tuple[int, int] | None = None
    """Requests and tokens as of the last writing, of all gateways; None: not read yet."""
    open_requests: int = 0
    """Let in here and not stored yet."""
    skips: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True, slots=True)
class _Pending:
    pair: ShadowPair
    tenant_id: str


class ShadowLedger:
    """Of one gateway process."""

    def __init__(self, *, store: Store, metrics: ShadowMetrics, flush_seconds: float) -> None:
        self._store = store
        self._metrics = metrics
        self._flush_seconds = flush_seconds
        self._accounts: dict[str, _Account] = {}
        self._running: dict[str, Experiment] = {}
        self._pending: deque[_Pending] = deque()
        self._poked = asyncio.Event()
        self._writing = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Write from now on."""
        self._task = asyncio.create_task(self._run(), name="shadow-ledger")

    async def stop(self) -> None:
        """Write what there is, for a bounded time, and stop."""
        if self._task is not None:
            await cancelled(self._task)
            self._task = None
        try:
            async with asyncio.timeout(_STOP_SECONDS):
                await self.flush()
        except Exception as error:  # noqa: BLE001 - a store that is away must not hold up the end; it is counted
            self._metrics.lost.labels("stopped").inc(len(self._pending))
            log.warning("shadow_pairs_lost", pairs=len(self._pending), error=repr(error))

    def follow(self, running: Collection[Experiment]) -> None:
        """What runs now; what stopped is forgotten once it is written."""
        self._running = {one.id: one for one in running}
        for experiment_id in self._running:
            self._accounts.setdefault(experiment_id, _Account())
        if self._running:
            self._poked.set()

    def reserve(self, experiment: Experiment) -> Skip | None:
        """Let one request in, unless there is a reason against it; ``add`` or ``give_back`` must follow."""
        account = self._accounts.get(experiment.id)
        if account is None or account.stored is None:
            return Skip.NOT_READY
        if len(self._pending) >= MOST_PENDING:
            return Skip.BACKLOG
        requests, tokens = account.stored
        if experiment.max_requests is not None and requests + account.open_requests >= experiment.max_requests:
            return Skip.BUDGET
        if experiment.max_tokens is not None:
            waiting = (one.pair for one in self._pending if one.pair.experiment_id == experiment.id)
            if tokens + sum(pair.candidate_tokens for pair in waiting) >= experiment.max_tokens:
                return Skip.BUDGET
        account.open_requests += 1
        return None

    def give_back(self, experiment_id: str, reason: Skip) -> None:
        """A request that was let in is left out after all."""
        self._account(experiment_id).open_requests -= 1
        self.skip(experiment_id, reason)

    def skip(self, experiment_id: str, reason: Skip) -> None:
        """A request is left out."""
        self._account(experiment_id).skips[reason.value] += 1
        self._metrics.skipped.labels(experiment_id, reason.value).inc()

    def add(self, pair: ShadowPair, tenant_id: str) -> None:
        """What came of a request that was let in."""
        self._pending.append(_Pending(pair, tenant_id))
        self._metrics.mirrored.labels(pair.experiment_id, pair.status.value).inc()
        self._metrics.tokens.labels(pair.experiment_id).inc(pair.candidate_tokens)

    async def flush(self) -> None:
        """Write everything that there is by now. Raises what the store raises; what was not written stays."""
        async with self._writing:
            await self._flush()

    async def _flush(self) -> None:
        unread = {name for name in self._running if self._accounts[name].stored is None}
        waiting = Counter(one.pair.experiment_id for one in self._pending)
        counted = {name for name, account in self._accounts.items() if account.skips}
        for experiment_id in sorted(unread | set(waiting) | counted):
            await self._write(experiment_id)
            while waiting[experiment_id] > _AT_ONCE:
                waiting[experiment_id] -= _AT_ONCE
                await self._write(experiment_id)
        for gone in set(self._accounts) - set(self._running):
            account = self._accounts[gone]
            if not account.open_requests and not account.skips:
                del self._accounts[gone]

    async def _write(self, experiment_id: str) -> None:
        account = self._account(experiment_id)
        batch = [one for one in self._pending if one.pair.experiment_id == experiment_id][:_AT_ONCE]
        skips = Counter(account.skips)
        async with self._store.transaction() as work:
            refused = await self._refused(work, batch)
            for one in batch:
                if one.pair.id not in refused:
                    await work.shadow_pairs.add_new(one.pair)
            await work.shadow_pairs.skip(experiment_id, skips)
            spent = await work.shadow_pairs.spent(experiment_id)
            ended = await _end_if_spent(work, experiment_id, spent)
        account.stored = spent
        account.skips.subtract(skips)
        account.skips += Counter()
        account.open_requests -= len(batch)
        written = {one.pair.id for one in batch}
        self._pending = deque(one for one in self._pending if one.pair.id not in written)
        self._metrics.lost.labels("withdrawn").inc(len(refused))
        if ended is not None:
            log.info("shadow_ended", experiment_id=experiment_id, reason=ended)
            await self._store.events.publish(EXPERIMENTS, {"experiment": experiment_id, "status": "stopped"})

    async def _refused(self, work: UnitOfWork, batch: Collection[_Pending]) -> set[str]:
        """Ids of pairs whose Episode, or Tenant, was withdrawn or erased meanwhile."""
        if not batch:
            return set()
        episodes, tenants = await work.withdrawals.refused(
            [one.pair.episode_id for one in batch], [one.tenant_id for one in batch]
        )
        return {one.pair.id for one in batch if one.pair.episode_id in episodes or one.tenant_id in tenants}

    def _account(self, experiment_id: str) -> _Account:
        return self._accounts.setdefault(experiment_id, _Account())

    async def _run(self) -> None:
        failures = 0
        while True:
            if not self._running and not self._accounts:
                self._poked.clear()
                await self._poked.wait()
            try:
                await self.flush()
                failures = 0
            except Exception as error:  # noqa: BLE001 - what was not written stays, and is written later
                failures += 1
                self._metrics.failures.labels("write").inc()
                log.warning("shadow_pairs_not_written", error=f"{type(error).__name__}: {error}")
            await asyncio.sleep(min(_LONGEST_WAIT_SECONDS, self._flush_seconds * 2.0 ** min(failures, 10)))


async def _end_if_spent(work: UnitOfWork, experiment_id: str, spent: tuple[int, int]) -> str | None:
    """Stop a running shadow whose budget is spent; the reason, where this did it."""
    experiment = await work.experiments.get(experiment_id)
    reason = spent_reason(experiment, spent)
    if reason is None or experiment.status == "stopped":
        return None
    experiment = await work.experiments.get(experiment_id, lock=True)
    if experiment.status == "stopped":
        return None
    ended = {"status": "stopped", "stopped_because": reason, "stopped_at": now()}
    await work.experiments.update(experiment.model_copy(update=ended))
    return reason


def spent_reason(experiment: Experiment, spent: tuple[int, int]) -> str | None:
    """Why a shadow has no budget left; None: it has."""
    requests, tokens = spent
    if experiment.max_requests is not None and requests >= experiment.max_requests:
        return f"its budget of {experiment.max_requests} requests is spent"
    if experiment.max_tokens is not None and tokens >= experiment.max_tokens:
        return f"its budget of {experiment.max_tokens} tokens is spent"
    return None
