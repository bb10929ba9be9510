"""Recorder: takes answered calls off the request path into the journal, and says how far they are durable.

``record`` costs an encoding and never waits. The Turns are built and written by a Drain: in the recorder process, or
in this one where the configuration says ``inline``. Both do the same and report through the journal's position file.
"""

import asyncio
import time
from collections import Counter
from functools import lru_cache
from pathlib import Path

import structlog

from core.background import cancelled
from core.config.schema import HoneConfig
from core.errors import MachineError
from gateway.capture.breaks import link_of
from gateway.capture.drain import Drain
from gateway.capture.journal import Journal, journal_root
from gateway.capture.position import Position, journal_ends, read_position
from gateway.capture.record import CapturedCall
from gateway.capture.redaction import load_redactor, without_content
from gateway.capture.stored import store_completion
from gateway.experiments.outcomes import record_exposure
from gateway.metrics import GatewayMetrics
from store.store import Store

log = structlog.get_logger(__name__)

_POLL_SECONDS = 0.01
_SILENT_SECONDS = 30.0
"""After this time without progress the recorder process is said to be away."""


def make_drain(config: HoneConfig, store: Store) -> Drain:
    """The Drain of this configuration's journals, with everything that is written beside Turns."""
    return Drain(
        journal_root(config),
        store=store,
        flush_seconds=config.gateway.recorder_flush_seconds,
        redactor=lru_cache(maxsize=1)(load_redactor),
        extras=(store_completion, record_exposure),
        link=link_of,
    )


class Recorder:
    """The gateway's side of the capture. ``record`` never raises; what cannot be kept is counted by cause."""

    def __init__(self, *, config: HoneConfig, store: Store, metrics: GatewayMetrics) -> None:
        self._config = config.gateway
        self._root = journal_root(config)
        self._metrics = metrics
        self._capacity = config.gateway.journal_max_mib * 1024 * 1024
        self._journal = Journal(
            self._root,
            capacity_bytes=self._capacity,
            lost=self._lose,
            schedule=self._at_end_of_turn,
            syncs=config.gateway.journal_sync == "disk",
        )
        self._drain = make_drain(config, store) if config.gateway.recorder == "inline" else None
        self._seen = Position()
        self._lost = 0
        self._error: str | None = None
        self._moved_at = 0.0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def buffered(self) -> int:
        """Turns that are not in the store yet."""
        self._look()
        return self._journal.undrained_turns

    @property
    def buffered_bytes(self) -> int:
        """Journal that is not in the store yet."""
        return self._journal.undrained_bytes

    @property
    def capacity(self) -> int:
        """Bytes of journal that may wait for the store."""
        return self._capacity

    @property
    def lost(self) -> int:
        """Turns that could not be kept since the start."""
        return self._lost

    @property
    def last_error(self) -> str | None:
        """Why recording fails or stands still at present; None while it works."""
        if self._journal.error is not None or self._error is not None:
            return self._journal.error or self._error
        silent = time.monotonic() - self._moved_at
        if self._seen.last_error is None and self._journal.undrained_turns and silent > _SILENT_SECONDS:
            return f"no Turn has reached the store for {silent:.0f} s: is the recorder process running?"
        return self._seen.last_error

    def record(self, call: CapturedCall) -> bool:
        """Take one answered call; False: it is lost, and counted. To be called right after the last byte."""
        if self._loop is None:
            self._lose("stopped", len(call.turn_ids))
            return False
        try:
            if call.payloads and not call.keeps_content:
                # Whoever made the record should have left it out: not even the journal may hold it.
                call = without_content(call)
            return self._journal.append(call)
        except Exception as error:
            # A record that cannot be encoded must not show in the answer.
            log.exception("record_not_encoded", turn_ids=call.turn_ids, error=repr(error))
            self._lose("malformed", len(call.turn_ids))
            return False

    async def start(self) -> None:
        """Open a journal, and drain it where that is this process's work. Raises MachineError."""
        self._loop = asyncio.get_running_loop()
        self._moved_at = time.monotonic()
        try:
            self._journal.open()
        except OSError as error:
            raise MachineError(
                f"the journal cannot be created: {error}",
                hint="make gateway.journal_dir, or data_dir, a folder that can be written",
            ) from error
        if self._drain is not None:
            await self._drain.start()
        self._tasks.append(asyncio.create_task(self._look_after(), name="recorder"))
        if self._config.journal_sync == "disk":
            self._tasks.append(asyncio.create_task(self._sync(), name="journal sync"))

    async def flush(self, timeout_seconds: float | None = None) -> bool:
        """Wait until all that was recorded is in the store; False if that took longer than ``timeout_seconds``."""
        self._journal.write()
        wanted = self._journal.offset
        try:
            async with asyncio.timeout(timeout_seconds):
                while self._look() < wanted:
                    if self._drain is not None:
                        self._drain.hurry()
                    await asyncio.sleep(_POLL_SECONDS)
        except TimeoutError:
            return False
        return True

    async def flush_all(self, timeout_seconds: float | None = None) -> bool:
        """As ``flush``, and wait for what the journals of other processes on this machine hold now.

        Another worker of this gateway may have answered the request whose Turn is wanted.
        """
        self._journal.write()
        wanted = journal_ends(self._root)
        try:
            async with asyncio.timeout(timeout_seconds):
                if not await self.flush():
                    return False
                while wanted := _undrained(self._root, wanted):
                    if self._drain is not None:
                        self._drain.hurry()
                    await asyncio.sleep(_POLL_SECONDS)
        except TimeoutError:
            return False
        return True

    async def stop(self) -> None:
        """Write everything to the journal and close it; what the store does not have yet stays there."""
        if self._loop is None:
            return
        self._loop = None
        for task in self._tasks:
            await cancelled(task)
        self._tasks.clear()
        self._journal.close()
        if self._drain is not None:
            await self._drain.stop()

    def _at_end_of_turn(self, write: object) -> None:
        assert self._loop is not None and callable(write)
        self._loop.call_soon(write)

    async def _look_after(self) -> None:
        while True:
            await asyncio.sleep(self._config.recorder_flush_seconds)
            try:
                self._journal.look_after()
                self._look()
            except Exception as error:
                # Nothing may end this task: it is what notices that the disk works again.
                log.exception("recorder_tick_failed", error=repr(error))

    async def _sync(self) -> None:
        while True:
            await asyncio.sleep(self._config.journal_sync_seconds)
            try:
                await self._journal.sync()
            except OSError as error:
                self._error = f"the journal cannot be forced to the disk: {error}"
                self._metrics.capture_failures.labels("journal_sync").inc()
                log.error("journal_not_synced", error=str(error))
            else:
                self._error = None

    def _look(self) -> int:
        """Take over what the Drain has done; the offset that it has reached."""
        if self._journal.folder.exists():
            position = read_position(self._journal.folder)
            seen, self._seen = self._seen, position
            if position.offset != seen.offset or not self._journal.undrained_turns:
                self._moved_at = time.monotonic()
            self._metrics.recorded_turns.inc(max(0, position.recorded - seen.recorded))
            for cause, turns in (Counter(position.lost) - Counter(seen.lost)).items():
                self._lost += turns
                self._metrics.lost_turns.labels(cause).inc(turns)
            for cause, calls in (Counter(position.failures) - Counter(seen.failures)).items():
                self._metrics.capture_failures.labels(cause).inc(calls)
            for link, turns in (Counter(position.links) - Counter(seen.links)).items():
                self._metrics.turn_links.labels(link).inc(turns)
            for model, tokens in (Counter(position.prompt_tokens) - Counter(seen.prompt_tokens)).items():
                self._metrics.prompt_tokens.labels(model).inc(tokens)
            for model, tokens in (Counter(position.cached_tokens) - Counter(seen.cached_tokens)).items():
                self._metrics.cached_prompt_tokens.labels(model).inc(tokens)
            self._journal.drained(position.offset)
        self._metrics.buffered_turns.set(self._journal.undrained_turns)
        return self._seen.offset

    def _lose(self, cause: str, turns: int) -> None:
        self._lost += turns
        self._metrics.lost_turns.labels(cause).inc(turns)
        self._metrics.capture_failures.labels(cause).inc()


def _undrained(root: Path, wanted: dict[Path, int]) -> dict[Path, int]:
    """Those of ``wanted`` that are not drained so far. A journal can shrink: a write that failed is taken back."""
    ends = journal_ends(root)
    return {
        folder: end
        for folder, offset in wanted.items()
        if read_position(folder).offset < (end := min(offset, ends.get(folder, 0)))
    }
