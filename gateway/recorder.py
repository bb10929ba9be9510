"""Makes Turns durable off the request path: a bounded buffer, written in batches, retried while the store is away."""

import asyncio
import contextlib
from collections import deque
from dataclasses import dataclass
from itertools import islice

import structlog

from core.config.schema import HoneConfig
from core.episode import Episode
from core.errors import NotFound, StoreError
from core.turn import Turn
from gateway.capture.turns import Capture, build_turns
from gateway.metrics import GatewayMetrics
from store.events import TURNS
from store.store import Store
from store.unit_of_work import UnitOfWork

log = structlog.get_logger(__name__)

BATCH_ITEMS = 64
"""Requests per transaction."""
REJECTIONS = 3
"""How often a healthy store may refuse one request's Turns before they are given up."""
_FIRST_RETRY_SECONDS = 0.1
_LONGEST_RETRY_SECONDS = 2.0
_STOP_SECONDS = 15.0


@dataclass(slots=True, eq=False)
class _Item:
    """One request on its way into the store; its Turns are built once, in the background."""

    capture: Capture
    episode: Episode | None
    turns: list[Turn] | None = None
    tried: bool = False
    rejections: int = 0

    @property
    def size(self) -> int:
        return max(1, len(self.capture.turn_ids))


class Recorder:
    """Owns the buffer. ``record`` never waits and never raises; what cannot be kept is counted by cause."""

    def __init__(self, *, config: HoneConfig, store: Store, metrics: GatewayMetrics) -> None:
        self._capacity = config.gateway.recorder_buffer_turns
        self._flush_seconds = config.gateway.recorder_flush_seconds
        self._store = store
        self._metrics = metrics
        self._waiting: deque[_Item] = deque()
        self._buffered = 0
        self._lost = 0
        self._last_error: str | None = None
        self._wake = asyncio.Event()
        self._hurry = asyncio.Event()
        self._empty = asyncio.Event()
        self._empty.set()
        self._task: asyncio.Task[None] | None = None

    @property
    def buffered(self) -> int:
        """Turns that are not durable yet."""
        return self._buffered

    @property
    def capacity(self) -> int:
        """Turns that fit into the buffer."""
        return self._capacity

    @property
    def lost(self) -> int:
        """Turns that could not be kept since the start."""
        return self._lost

    @property
    def last_error(self) -> str | None:
        """Why writing fails at present; None while it works."""
        return self._last_error

    def record(self, capture: Capture, episode: Episode | None = None) -> bool:
        """Take one answered request, and the Episode that it opened; False: the buffer is full and it is lost."""
        item = _Item(capture, episode)
        if self._buffered + item.size > self._capacity:
            self._lose(item, "buffer_full")
            return False
        self._waiting.append(item)
        self._count(item.size)
        self._wake.set()
        return True

    async def start(self) -> None:
        """Write from now on."""
        self._task = asyncio.create_task(self._run(), name="recorder")

    async def flush(self, timeout_seconds: float | None = None) -> bool:
        """Wait until all that was recorded is durable; False if that took longer than ``timeout_seconds``."""
        self._hurry.set()
        try:
            async with asyncio.timeout(timeout_seconds):
                await self._empty.wait()
        except TimeoutError:
            return False
        finally:
            self._hurry.clear()
        return True

    async def stop(self) -> None:
        """Drain, for a bounded time, then stop; what a store outage keeps out is counted as lost."""
        if self._task is None:
            return
        drained = await self.flush(_STOP_SECONDS)
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
        self._task = None
        if not drained:
            while self._waiting:
                item = self._waiting.popleft()
                self._lose(item, "stopped")
                self._count(-item.size)

    async def _run(self) -> None:
        delay = _FIRST_RETRY_SECONDS
        while True:
            await self._wait_for_batch()
            batch = list(islice(self._waiting, BATCH_ITEMS))
            if await self._write_or_explain(batch):
                delay = _FIRST_RETRY_SECONDS
                continue
            await asyncio.sleep(delay)
            delay = min(_LONGEST_RETRY_SECONDS, 2 * delay)

    async def _wait_for_batch(self) -> None:
        await self._wake.wait()
        if len(self._waiting) < BATCH_ITEMS and not self._hurry.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._flush_seconds):
                    await self._hurry.wait()

    async def _write_or_explain(self, batch: list[_Item]) -> bool:
        """Write a batch; on failure find out whether the store is away or one of the batch is not acceptable."""
        for item in batch:
            self._build(item)
            # Building takes about a hundred microseconds a Turn: let requests in between.
            await asyncio.sleep(0)
        try:
            added = await self._write(batch)
        except Exception as error:  # noqa: BLE001 - nothing may end the recorder's task
            self._last_error = f"{type(error).__name__}: {error}"
            log.warning("recorder_write_failed", turns=self._buffered, error=self._last_error)
            if isinstance(error, StoreError | OSError) or not await self._store_answers():
                return False
            await self._write_singly(batch)
            return False
        self._last_error = None
        self._done(batch)
        await self._store.events.publish(TURNS, {"turns": added})
        return True

    async def _write_singly(self, batch: list[_Item]) -> None:
        for item in batch:
            try:
                await self._write([item])
            except Exception as error:  # noqa: BLE001 - nothing may end the recorder's task
                item.rejections += 1
                if item.rejections >= REJECTIONS and await self._store_answers():
                    log.error(
                        "turn_rejected", turn_ids=item.capture.turn_ids, error=f"{type(error).__name__}: {error}"
                    )
                    self._lose(item, "rejected")
                    self._done([item])
            else:
                self._done([item])

    async def _store_answers(self) -> bool:
        try:
            async with self._store.transaction() as work:
                await work.bases.list()
        except Exception as error:  # noqa: BLE001 - nothing may end the recorder's task
            log.warning("store_away", error=f"{type(error).__name__}: {error}")
            return False
        return True

    async def _write(self, batch: list[_Item]) -> int:
        turns = [turn for item in batch for turn in item.turns or ()]
        async with self._store.transaction() as work:
            for item in batch:
                if item.episode is not None and not (item.tried and await _exists(work, item.episode.id)):
                    await work.episodes.add(item.episode)
                item.tried = True
            added = await work.turns.add_many(turns)
        self._metrics.recorded_turns.inc(added)
        return added

    def _build(self, item: _Item) -> None:
        if item.turns is not None:
            return
        try:
            item.turns = build_turns(item.capture)
        except Exception as error:  # noqa: BLE001 - what an engine sent is not to be trusted
            log.error("turn_malformed", turn_ids=item.capture.turn_ids, error=f"{type(error).__name__}: {error}")
            item.turns = []
            self._lose(item, "malformed")
        else:
            inexact = sum(not turn.exact for turn in item.turns if item.capture.broken is None)
            if inexact:
                self._metrics.capture_failures.labels("inexact").inc(inexact)
        item.capture.payloads = []

    def _done(self, items: list[_Item]) -> None:
        for item in items:
            self._waiting.remove(item)
            self._count(-item.size)
        if not self._waiting:
            self._wake.clear()
            self._empty.set()

    def _count(self, turns: int) -> None:
        self._buffered += turns
        self._metrics.buffered_turns.set(self._buffered)
        if turns > 0:
            self._empty.clear()

    def _lose(self, item: _Item, cause: str) -> None:
        self._lost += item.size
        self._metrics.lost_turns.labels(cause).inc(item.size)
        self._metrics.capture_failures.labels(cause).inc()


async def _exists(work: UnitOfWork, episode_id: str) -> bool:
    """Whether an earlier try was committed although its answer was lost."""
    try:
        await work.episodes.get(episode_id)
    except NotFound:
        return False
    return True
