"""Journal: the append-only files that hold answered calls until they are in the store.

``append`` encodes and returns; all frames of one turn of the event loop are written together at its end, so a killed
process loses at most what was answered while that turn ran. What clients said lies here unredacted until it is
drained: folders have mode 0700, files 0600, and a segment is closed after seconds and deleted once drained.
"""

import asyncio
import contextlib
import errno
import fcntl
import os
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

import structlog

from core import ids
from core.config.schema import HoneConfig
from gateway.capture.frames import frame_parts
from gateway.capture.record import CapturedCall

log = structlog.get_logger(__name__)

LOCK = "lock"
"""Locked by the process that appends: who gets the lock knows that the process has ended."""
SUFFIX = ".journal"
SEGMENT_BYTES = 64 * 1024 * 1024
SEGMENT_SECONDS = 10.0
"""A segment takes no more records after this time, so that drained content is deleted soon."""
JOURNAL_FULL = "journal_full"
DISK_FULL = "journal_disk_full"
DISK_ERROR = "journal_disk_error"
_MOST_PENDING_BYTES = 16 * 1024 * 1024
"""What is held in memory while the disk refuses to be written."""
_RETRY_SECONDS = 0.5
_MOST_VECTORS = 1024
"""Of one ``writev`` (IOV_MAX)."""

Lost = Callable[[str, int], None]
"""Told the cause and the number of Turns."""


def journal_root(config: HoneConfig) -> Path:
    """The folder of all journals that one writer drains."""
    configured = config.gateway.journal_dir
    return (
        Path(configured).expanduser().absolute()
        if configured
        else config.data_dir.expanduser().absolute() / "journal"
    )


def segment_name(offset: int) -> str:
    """The file that begins at ``offset``, counted in bytes from the journal's first one."""
    return f"{offset:016d}{SUFFIX}"


class Journal:
    """One process's journal. Only this process appends; a Drain reads, and deletes what it has drained.

    ``schedule`` runs a function at the end of the event loop's turn; without it the caller calls ``write``. With
    ``syncs`` the caller awaits ``sync`` at intervals.
    """

    def __init__(
        self,
        root: Path,
        *,
        capacity_bytes: int,
        lost: Lost,
        schedule: Callable[[Callable[[], None]], object] | None = None,
        syncs: bool = False,
        segment_bytes: int = SEGMENT_BYTES,
        segment_seconds: float = SEGMENT_SECONDS,
    ) -> None:
        self.folder = root / ids.new_id(ids.JOURNAL)
        self._root = root
        self._capacity = capacity_bytes
        self._lost = lost
        self._schedule = schedule
        self._syncs = syncs
        self._closed: list[int] = []
        """Files of earlier segments that the disk itself may not have yet."""
        self._segment_bytes = segment_bytes
        self._segment_seconds = segment_seconds
        self._pending: list[bytes] = []
        self._pending_bytes = 0
        self._buffered_turns = 0
        self._scheduled = False
        self._lock: int | None = None
        self._file: int | None = None
        self._path: Path | None = None
        self._size = 0
        self._opened_at = 0.0
        self._offset = 0
        self._drained = 0
        self._marks: deque[tuple[int, int]] = deque()
        self._undrained_turns = 0
        self._retry_at = 0.0
        self._unsynced = False
        self.cause = DISK_ERROR
        """Why the disk refused the last write that failed."""
        self.error: str | None = None
        """What the disk said, while it cannot be written."""

    @property
    def offset(self) -> int:
        """Bytes written since the beginning, gaps included; what a Drain's position must reach."""
        return self._offset

    @property
    def undrained_bytes(self) -> int:
        """Bytes not known to be in the store."""
        return self._offset - self._drained + self._pending_bytes

    @property
    def undrained_turns(self) -> int:
        """Turns not known to be in the store."""
        return self._undrained_turns + self._buffered_turns

    def open(self) -> None:
        """Create the folder and the first segment. Raises OSError."""
        self._create_folder()
        self._open_segment()

    def append(self, call: CapturedCall) -> bool:
        """Take one record; False: there is no room, and its Turns were reported as lost."""
        if self.error is not None and self._pending_bytes >= _MOST_PENDING_BYTES:
            return self._refuse(self.cause, call)
        if self.undrained_bytes >= self._capacity:
            return self._refuse(JOURNAL_FULL, call)
        header, body = frame_parts(call)
        self._pending += (header, body)
        self._pending_bytes += len(header) + len(body)
        self._buffered_turns += len(call.turn_ids)
        if not self._scheduled and self._schedule is not None:
            self._scheduled = True
            self._schedule(self.write)
        return True

    def write(self) -> None:
        """Hand all that was appended to the operating system; while the disk fails, try again at times."""
        self._scheduled = False
        if not self._pending or (self.error is not None and time.monotonic() < self._retry_at):
            return
        try:
            if self._file is None or self._size >= self._segment_bytes:
                self._open_segment()
            self._write_all()
        except OSError as error:
            self._failed(error)
            return
        if self.error is not None:
            log.info("journal_writable_again", folder=str(self.folder))
            self.error = None
        self._size += self._pending_bytes
        self._offset += self._pending_bytes
        self._marks.append((self._offset, self._buffered_turns))
        self._undrained_turns += self._buffered_turns
        self._buffered_turns = 0
        self._forget_pending()
        self._unsynced = True

    def drained(self, offset: int) -> None:
        """Learn that everything before ``offset`` needs this journal no more."""
        self._drained = max(self._drained, offset)
        while self._marks and self._marks[0][0] <= offset:
            self._undrained_turns -= self._marks.popleft()[1]

    def look_after(self) -> None:
        """To be called many times a second: retry a failed write, and begin a new segment when it is time."""
        self.write()
        if self.error is not None or self._path is None:
            return
        gone = not self._path.exists()
        old = self._size > 0 and time.monotonic() - self._opened_at > self._segment_seconds
        if not (gone or old):
            return
        try:
            self._open_segment()
        except OSError as error:
            self._failed(error)

    async def sync(self) -> None:
        """Wait until the disk itself has what was written. Raises OSError; then a new segment begins."""
        if not self._unsynced or self._file is None:
            return
        self._unsynced = False
        files = [*self._closed, os.dup(self._file)]
        self._closed.clear()
        try:
            await asyncio.to_thread(_sync, files, self.folder)
        except OSError:
            # The kernel reports a failed write-back once and then forgets it: this file is not to be trusted.
            self._open_segment()
            raise
        finally:
            for file in files:
                os.close(file)

    def close(self) -> None:
        """Write what is left and let a Drain know that no more will come; what cannot be written is lost."""
        self._retry_at = 0.0
        self.write()
        if self._buffered_turns:
            self._lost(self.cause, self._buffered_turns)
            self._buffered_turns = 0
            self._forget_pending()
        if self._syncs and self._file is not None:
            with contextlib.suppress(OSError):  # The disk has said so before; stopping goes on.
                _sync([*self._closed, self._file], self.folder)
        for file in (*self._closed, self._file, self._lock):
            if file is not None:
                os.close(file)
        self._closed.clear()
        self._file = self._lock = self._path = None

    def _refuse(self, cause: str, call: CapturedCall) -> bool:
        self._lost(cause, len(call.turn_ids))
        return False

    def _write_all(self) -> None:
        assert self._file is not None
        for start in range(0, len(self._pending), _MOST_VECTORS):
            parts = self._pending[start : start + _MOST_VECTORS]
            written, total = os.writev(self._file, parts), sum(map(len, parts))
            if written < total:
                with memoryview(b"".join(parts)) as data:
                    while written < total:
                        written += os.write(self._file, data[written:])

    def _forget_pending(self) -> None:
        self._pending.clear()
        self._pending_bytes = 0

    def _failed(self, error: OSError) -> None:
        """Take a half-written frame back, and remember what is wrong."""
        if self.error is None:
            log.error("journal_not_writable", folder=str(self.folder), error=str(error))
        self.cause = DISK_FULL if error.errno in (errno.ENOSPC, errno.EDQUOT) else DISK_ERROR
        self.error = f"the journal cannot be written: {error}"
        self._retry_at = time.monotonic() + _RETRY_SECONDS
        if self._file is None:
            return
        try:
            os.ftruncate(self._file, self._size)
        except OSError as another:
            log.error("journal_not_truncated", folder=str(self.folder), error=str(another))
            os.close(self._file)
            self._file = None
            # The next segment begins behind whatever half a frame stands in this one.
            self._offset += self._pending_bytes

    def _open_segment(self) -> None:
        if not self.folder.exists():
            self._create_folder()
        if self._size > 0 or self._file is None or self._path is None or not self._path.exists():
            path = self.folder / segment_name(self._offset)
            file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
            if self._file is not None and self._syncs and self._unsynced:
                self._closed.append(self._file)
            elif self._file is not None:
                os.close(self._file)
            self._file, self._path, self._size = file, path, 0
        self._opened_at = time.monotonic()

    def _create_folder(self) -> None:
        """Make the folder under another name and lock it, so that no Drain takes it for a dead process's."""
        self._root.mkdir(mode=0o700, parents=True, exist_ok=True)
        new = self._root / f".{self.folder.name}"
        new.mkdir(mode=0o700, exist_ok=True)
        if self._lock is not None:
            os.close(self._lock)
        self._lock = os.open(new / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        new.rename(self.folder)


def _sync(files: list[int], folder: Path) -> None:
    for file in files:
        os.fdatasync(file)
    # The names of new files are the folder's data.
    names = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(names)
    finally:
        os.close(names)
