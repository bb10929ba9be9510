"""Drain: moves records from journals into the store, in order, in batches, at least once and each Turn once.

A batch is one transaction; the journal's position advances after the commit. While the store is away the batch is
tried again. What a healthy store refuses again and again is put aside, so that it does not hold up the rest.
"""

import asyncio
import contextlib
import os
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import msgspec
import structlog

from core.background import cancelled
from core.errors import StoreError
from core.turn import Turn
from gateway.capture.frames import decode_call, frame_parts
from gateway.capture.locks import try_lock
from gateway.capture.position import Position, add_counts
from gateway.capture.prepared import PreparedCall, prepare_call, set_aside_form
from gateway.capture.reader import CORRUPT, JournalReader
from gateway.capture.record import CapturedCall
from gateway.capture.redaction import Redactor
from gateway.capture.withdrawn import without_withdrawn
from store.events import TURNS
from store.store import Store
from store.unit_of_work import UnitOfWork

log = structlog.get_logger(__name__)

Extra = Callable[[UnitOfWork, CapturedCall, list[Turn]], Awaitable[None]]
"""Writes more about a call in the transaction that adds its Turns; may run again for the same call."""
Link = Callable[[UnitOfWork, CapturedCall, list[Turn]], Awaitable[str | None]]
"""How a call's Turns continue an earlier one, or why not; None: not to be counted."""

BATCH_CALLS = 64
"""Calls per transaction."""
REJECTIONS = 3
"""How often a healthy store may refuse one call's Turns before they are put aside."""
REJECTED = "rejected"
"""Folder beside the journals: one frame per call that the store refused."""
WRITER_LOCK = "writer.lock"
_FIRST_RETRY_SECONDS = 0.1
_LONGEST_RETRY_SECONDS = 2.0
_LOCK_SECONDS = 1.0
_DEATH_SECONDS = 1.0


class _Away(Exception):
    """The store, or the folder of the journals, does not work at present."""


class Drain:
    """The one writer of a folder of journals; further ones wait until it ends."""

    def __init__(
        self,
        root: Path,
        *,
        store: Store,
        flush_seconds: float,
        redactor: Callable[[], Redactor | None] = lambda: None,
        extras: Sequence[Extra] = (),
        link: Link | None = None,
    ) -> None:
        self._root = root
        self._store = store
        self._flush_seconds = flush_seconds
        self._redactor = redactor
        self._extras = tuple(extras)
        self._link = link
        self._readers: dict[str, JournalReader] = {}
        self._lock: int | None = None
        self._looked_at = 0.0
        self._wake = asyncio.Event()
        self._stopping = False
        self._task: asyncio.Task[None] | None = None

    @property
    def writes(self) -> bool:
        """Whether this is the one that writes; else another process does."""
        return self._lock is not None

    async def start(self) -> None:
        """Write from now on, as soon as no other process does."""
        await asyncio.to_thread(self._root.mkdir, mode=0o700, parents=True, exist_ok=True)
        self._task = asyncio.create_task(self._run(), name="drain")

    def hurry(self) -> None:
        """Look for new records now."""
        self._wake.set()

    async def stop(self, timeout_seconds: float = 15.0) -> None:
        """Write all there is, for a bounded time, then stop. What is left stays in the journals."""
        if self._task is None:
            return
        self._stopping = True
        self._wake.set()
        await asyncio.wait({self._task}, timeout=timeout_seconds)
        await cancelled(self._task)
        self._task = None
        for reader in self._readers.values():
            reader.close()
        self._readers.clear()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    async def _run(self) -> None:
        delay = _FIRST_RETRY_SECONDS
        while True:
            pause = self._flush_seconds
            try:
                if not self._may_write():
                    pause = _LOCK_SECONDS
                    busy = False
                else:
                    busy = await self._pass()
                delay = _FIRST_RETRY_SECONDS
            except (_Away, OSError) as error:
                log.warning("drain_waits", error=str(error))
                await asyncio.sleep(delay)
                delay = min(_LONGEST_RETRY_SECONDS, 2 * delay)
                continue
            except Exception as error:
                # Nothing may end this task; the position has not moved, so nothing is lost.
                log.exception("drain_failed", error=repr(error))
                await asyncio.sleep(_LONGEST_RETRY_SECONDS)
                continue
            if busy:
                continue
            if self._stopping:
                return
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._wake.wait()
            self._wake.clear()

    def _may_write(self) -> bool:
        if self._lock is None:
            self._lock = try_lock(self._root / WRITER_LOCK)
        return self._lock is not None

    async def _pass(self) -> bool:
        """One batch of every journal; whether there was any."""
        busy = False
        look = self._stopping or time.monotonic() - self._looked_at > _DEATH_SECONDS
        if look:
            self._looked_at = time.monotonic()
        failed: OSError | None = None
        for reader in self._find_readers():
            try:
                chunk = reader.read(BATCH_CALLS)
            except OSError as error:
                # One journal that cannot be read holds up no other.
                log.error("journal_unreadable", folder=str(reader.folder), error=str(error))
                failed = error
                continue
            if chunk.bodies:
                await self._move(reader, chunk.bodies, chunk.ends)
                busy = True
            elif look and (not reader.dead) and reader.look_whether_dead():
                # What it wrote last may have come after the look.
                busy = True
            elif reader.dead:
                log.info("journal_drained", folder=str(reader.folder), recorded=reader.position.recorded)
                reader.remove()
                del self._readers[reader.folder.name]
        if failed is not None and not busy:
            raise _Away(str(failed)) from failed
        return busy

    def _find_readers(self) -> list[JournalReader]:
        names = {entry.name for entry in os.scandir(self._root) if entry.is_dir() and not entry.name.startswith(".")}
        names -= {REJECTED, CORRUPT}
        for name in names - set(self._readers):
            self._readers[name] = JournalReader(self._root / name)
        for name in set(self._readers) - names:
            self._readers.pop(name).close()
        return list(self._readers.values())

    async def _move(self, reader: JournalReader, bodies: list[memoryview], ends: list[int]) -> None:
        """Write one batch and advance; on failure find out whether the store is away or refuses one of the calls."""
        found = [await self._prepare(body) for body in bodies]
        batch = [prepared for prepared in found if prepared is not None]
        unreadable = 0
        for prepared, body, end in zip(found, bodies, ends, strict=True):
            if prepared is None:
                self._keep_unreadable(f"{reader.folder.name}-{end}", body)
                unreadable += 1
        try:
            added, links = await self._write(batch)
        except Exception as error:
            # Logged and shown; nothing may end the task.
            reader.say(f"{type(error).__name__}: {error}")
            if _is_outage(error) or not await self._store_answers():
                raise _Away(reader.position.last_error) from error
            added, links = await self._write_singly(reader, batch)
        for prepared in batch:
            _count_prompt(reader.position, prepared.turns)
            add_counts(reader.position.failures, prepared.failures)
            add_counts(reader.position.lost, prepared.lost)
        if unreadable:
            add_counts(reader.position.failures, {"unreadable_record": unreadable})
            # How many Turns a record holds cannot be seen: at least one.
            add_counts(reader.position.lost, {"unreadable_record": unreadable})
        add_counts(reader.position.links, links)
        reader.position.recorded += added
        reader.position.last_error = None
        reader.advance(ends[-1])
        await self._store.events.publish(TURNS, {"turns": added})

    async def _prepare(self, body: memoryview) -> PreparedCall | None:
        try:
            call = decode_call(body)
        except msgspec.DecodeError as error:
            log.error("record_unreadable", error=str(error))
            return None
        if call.redact:
            return await asyncio.to_thread(self._prepare_redacted, call)
        # Building takes about a hundred microseconds a Turn: let requests in between, where there are any.
        await asyncio.sleep(0)
        return prepare_call(call, None)

    def _prepare_redacted(self, call: CapturedCall) -> PreparedCall:
        return prepare_call(call, self._redactor())

    async def _write(self, batch: Sequence[PreparedCall], *, extras: bool = True) -> tuple[int, Counter[str]]:
        """One transaction; the number of Turns that were new, and how those continue earlier ones."""
        links: Counter[str] = Counter()
        async with self._store.transaction() as work:
            # What was withdrawn while it lay in the journal is dropped here: nothing of it comes back.
            batch = await without_withdrawn(work, batch)
            turns = [turn for prepared in batch for turn in prepared.turns]
            episodes = {prepared.episode.id: prepared.episode for prepared in batch if prepared.episode is not None}
            # What an earlier try wrote, whose answer was lost, is there and stays.
            await work.episodes.add_many(list(episodes.values()))
            known = await work.turns.existing([turn.id for turn in turns]) if self._link is not None else set()
            added = await work.turns.add_many(turns)
            for prepared in batch if extras else ():
                for extra in self._extras:
                    await extra(work, prepared.call, prepared.turns)
                if self._link is not None and not any(turn.id in known for turn in prepared.turns):
                    link = await self._link(work, prepared.call, prepared.turns)
                    if link is not None:
                        links[link] += 1
        return added, links

    async def _write_singly(self, reader: JournalReader, batch: Sequence[PreparedCall]) -> tuple[int, Counter[str]]:
        """As ``_write``, each call in a transaction of its own; those that are refused to the end are put aside."""
        added, links = 0, Counter[str]()
        for prepared in batch:
            for attempt in range(REJECTIONS):
                try:
                    new, its_links = await self._write([prepared], extras=attempt + 1 < REJECTIONS)
                except Exception as error:
                    if _is_outage(error) or not await self._store_answers():
                        raise _Away(f"{type(error).__name__}: {error}") from error
                    if attempt + 1 == REJECTIONS:
                        self._put_aside(prepared, error)
                else:
                    added += new
                    links += its_links
                    if attempt + 1 == REJECTIONS and self._extras:
                        prepared.failures["extra"] += 1
                    break
        return added, links

    def _put_aside(self, prepared: PreparedCall, error: Exception) -> None:
        call = prepared.call
        log.error("turn_rejected", turn_ids=call.turn_ids, error=f"{type(error).__name__}: {error}")
        prepared.failures["rejected"] += 1
        prepared.lost["rejected"] += max(1, len(call.turn_ids))
        name = call.turn_ids[0] if call.turn_ids else call.request_id
        self._keep(REJECTED, f"{name}.call", b"".join(frame_parts(set_aside_form(call))))

    def _keep_unreadable(self, name: str, body: memoryview) -> None:
        self._keep(CORRUPT, f"{name}.record", body)

    def _keep(self, folder_name: str, name: str, data: bytes | memoryview) -> None:
        """Put something aside beside the journals. Raises OSError."""
        folder = self._root / folder_name
        folder.mkdir(mode=0o700, exist_ok=True)
        file = os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with os.fdopen(file, "wb") as kept:
            kept.write(data)

    async def _store_answers(self) -> bool:
        try:
            async with self._store.transaction() as work:
                await work.bases.list()
        except Exception as error:  # noqa: BLE001 - that is the question
            log.warning("store_away", error=f"{type(error).__name__}: {error}")
            return False
        return True


def _count_prompt(position: Position, turns: Sequence[Turn]) -> None:
    """Add what the prefix cache had of one prompt, which all its choices share."""
    first = turns[0] if turns else None
    if first is not None and first.usage.cached_tokens is not None:
        add_counts(position.prompt_tokens, {first.policy: first.usage.prompt_tokens})
        add_counts(position.cached_tokens, {first.policy: first.usage.cached_tokens})


def _is_outage(error: Exception) -> bool:
    """Whether the store failed, rather than refused a value (SQLSTATE class 22: data exception)."""
    if not isinstance(error, StoreError | OSError):
        return False
    state = getattr(getattr(error.__cause__, "orig", None), "sqlstate", None)
    return not (isinstance(state, str) and state.startswith("22"))
