"""How far a journal is drained: written by the Drain after every commit, read by the gateway that appends."""

import contextlib
import os
from collections import Counter
from pathlib import Path

import msgspec
import structlog

from gateway.capture.journal import SUFFIX

log = structlog.get_logger(__name__)

_NAME = "position.json"


class Position(msgspec.Struct, kw_only=True):
    """Everything before ``offset`` is in the store, or counted as lost."""

    offset: int = 0
    """Bytes from the journal's beginning."""
    recorded: int = 0
    """Turns added to the store."""
    lost: dict[str, int] = {}
    """Turns that could not be kept, by cause."""
    failures: dict[str, int] = {}
    """Calls captured incompletely or not at all, by cause."""
    links: dict[str, int] = {}
    """Turns after an Episode's first, by whether they continue the tokens of an earlier one or why not."""
    prompt_tokens: dict[str, int] = {}
    """Policy or Base → tokens of prompts of which the engine said how many its prefix cache had."""
    cached_tokens: dict[str, int] = {}
    """Policy or Base → tokens of those prompts that the prefix cache had."""
    last_error: str | None = None
    """Why writing to the store fails at present."""


_decode = msgspec.json.Decoder(Position).decode
_encode = msgspec.json.Encoder().encode


def read_position(folder: Path) -> Position:
    """The position of a journal; the beginning where none is written or what is written cannot be read."""
    try:
        return _decode((folder / _NAME).read_bytes())
    except FileNotFoundError:
        return Position()
    except (OSError, msgspec.DecodeError) as error:
        # Reading a record twice is harmless: the store adds a Turn once.
        log.warning("journal_position_unreadable", folder=str(folder), error=str(error))
        return Position()


def write_position(folder: Path, position: Position) -> None:
    """Replace the position in one step. Raises OSError."""
    new = folder / f"{_NAME}.new"
    file = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        os.write(file, _encode(position))
    finally:
        os.close(file)
    new.replace(folder / _NAME)


def journal_ends(root: Path) -> dict[Path, int]:
    """Every journal in ``root`` that has segments, and the offset behind its last byte at present."""
    ends: dict[Path, int] = {}
    for segment in root.glob(f"*/*{SUFFIX}"):
        # Drained segments are deleted at any time.
        with contextlib.suppress(FileNotFoundError):
            end = int(segment.stem) + segment.stat().st_size
            ends[segment.parent] = max(end, ends.get(segment.parent, 0))
    return ends


def add_counts(counts: dict[str, int], more: Counter[str] | dict[str, int]) -> None:
    """Add ``more`` to ``counts`` in place."""
    for cause, number in more.items():
        counts[cause] = counts.get(cause, 0) + number
