"""Removes calls of withdrawn Episodes and erased Tenants from what a drain has put aside beside the journals."""

from collections.abc import Collection, Iterator
from pathlib import Path

import msgspec
import structlog

from gateway.capture.drain import REJECTED
from gateway.capture.frames import decode_call, split_frames
from gateway.capture.record import CapturedCall

log = structlog.get_logger(__name__)


def remove_set_aside(journals: Path, episodes: Collection[str], tenants: Collection[str]) -> int:
    """Delete the files below ``journals`` that hold such a call; how many. One that cannot be read stays."""
    removed = 0
    for file, calls in _set_aside(journals):
        if any(call.episode_id in episodes or call.tenant_id in tenants for call in calls):
            file.unlink(missing_ok=True)
            removed += 1
    return removed


def set_aside_names(journals: Path) -> tuple[set[str], set[str]]:
    """Ids of the Episodes and Tenants of all that is put aside and can be read."""
    episodes: set[str] = set()
    tenants: set[str] = set()
    for _, calls in _set_aside(journals):
        episodes |= {call.episode_id for call in calls}
        tenants |= {call.tenant_id for call in calls}
    return episodes, tenants


def _set_aside(journals: Path) -> Iterator[tuple[Path, list[CapturedCall]]]:
    for file in sorted((journals / REJECTED).glob("*.call")):
        try:
            split = split_frames(file.read_bytes(), 1)
            yield file, [decode_call(body) for body in split.bodies]
        except (OSError, msgspec.DecodeError) as error:
            log.warning("set_aside_unreadable", file=file.name, error=str(error))
