"""JournalReader: reads one journal from its position on, steps over damage, and deletes what is drained."""

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

import structlog

from gateway.capture.frames import Split, split_frames
from gateway.capture.journal import LOCK, SUFFIX
from gateway.capture.locks import try_lock
from gateway.capture.position import Position, add_counts, read_position, write_position

log = structlog.get_logger(__name__)

CORRUPT = "corrupt"
"""Folder beside the journals for damaged segments."""
_CHUNK_BYTES = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Chunk:
    """Some records in order."""

    bodies: list[memoryview]
    ends: list[int]
    """The journal's offset behind each."""


@dataclass(frozen=True, slots=True)
class _Segment:
    base: int
    path: Path
    closed: bool
    """Nothing will be appended."""

    def size(self) -> int:
        return self.path.stat().st_size


class JournalReader:
    """One journal. Only one process may read it at a time."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.position: Position = read_position(folder)
        self._lock: int | None = None
        self._suspected: int | None = None

    @property
    def dead(self) -> bool:
        """Whether the process that appended is known to have ended."""
        return self._lock is not None

    def look_whether_dead(self) -> bool:
        """Find out whether the process that appended has ended."""
        if self._lock is None:
            self._lock = try_lock(self.folder / LOCK)
        return self.dead

    def read(self, most: int) -> Chunk:
        """The next records, at most ``most``; none: nothing can be read at present. Raises OSError."""
        while (segment := self._segment()) is not None:
            at = self.position.offset - segment.base
            size = segment.size()
            if at >= size:
                if not segment.closed or not self._leave(segment):
                    break
                continue
            split = _split(segment.path, at, most)
            if split.bodies:
                return Chunk(split.bodies, [self.position.offset + end for end in split.ends])
            if not self._step_over(segment, split, at, size):
                break
        return Chunk([], [])

    def advance(self, offset: int) -> None:
        """Note durably that everything before ``offset`` is done. Raises OSError."""
        self.position.offset = offset
        write_position(self.folder, self.position)

    def say(self, error: str | None) -> None:
        """Let the gateway know why writing fails, or that it works again."""
        if error != self.position.last_error:
            self.position.last_error = error
            write_position(self.folder, self.position)

    def close(self) -> None:
        """Stop reading."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def remove(self) -> None:
        """Delete a dead process's journal, all of which is drained."""
        assert self.dead
        shutil.rmtree(self.folder)
        self.close()

    def _segment(self) -> _Segment | None:
        """The segment where the position is; the first one where it lies before all of them."""
        found = sorted((int(path.stem), path) for path in self.folder.glob(f"*{SUFFIX}"))
        if not found:
            return None
        number = max((i for i, (base, _) in enumerate(found) if base <= self.position.offset), default=0)
        base, path = found[number]
        if base > self.position.offset:
            self.position.offset = base
        # A position that was lost with the disk's cache can leave drained segments behind.
        for _, earlier in found[:number]:
            earlier.unlink()
        return _Segment(base, path, closed=self.dead or number + 1 < len(found))

    def _leave(self, segment: _Segment) -> bool:
        """Go on to the next segment and delete this one; False: there is no next."""
        later = sorted(int(path.stem) for path in self.folder.glob(f"*{SUFFIX}") if int(path.stem) > segment.base)
        if not later:
            return False
        self._suspected = None
        self.advance(max(later[0], self.position.offset))
        segment.path.unlink()
        return True

    def _step_over(self, segment: _Segment, split: Split, at: int, size: int) -> bool:
        """Deal with bytes that are no record; False: they may become one."""
        last = at + split.wanted >= size if split.wanted else _only_zeros(segment.path, at)
        if split.rest == "incomplete" or (split.rest == "corrupt" and last):
            if not segment.closed:
                return False
            self._skip(segment, size, "torn_tail")
            return True
        if not segment.closed and self._suspected != self.position.offset:
            # A frame that is taken back after a failed write can be seen half; it is gone at the second look.
            self._suspected = self.position.offset
            return False
        aside = self.folder.parent / CORRUPT / f"{self.folder.name}-{segment.path.stem}.corrupt"
        aside.parent.mkdir(mode=0o700, exist_ok=True)
        segment.path.rename(aside)
        self._skip(segment, size, "corrupt_segment")
        return True

    def _skip(self, segment: _Segment, size: int, cause: str) -> None:
        log.error(
            "journal_damaged",
            segment=str(segment.path),
            cause=cause,
            skipped=segment.base + size - self.position.offset,
        )
        add_counts(self.position.failures, {cause: 1})
        self.advance(segment.base + size)


def _split(path: Path, at: int, most: int) -> Split:
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        split = split_frames(os.pread(file, _CHUNK_BYTES, at), most)
        if split.rest == "incomplete" and not split.bodies and split.wanted > _CHUNK_BYTES:
            split = split_frames(os.pread(file, split.wanted, at), 1)
        return split
    finally:
        os.close(file)


def _only_zeros(path: Path, at: int) -> bool:
    """Whether nothing else follows: what a power failure leaves where a file had grown."""
    with path.open("rb") as file:
        file.seek(at)
        while data := file.read(_CHUNK_BYTES):
            if data.count(0) != len(data):
                return False
    return True
