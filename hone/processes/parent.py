"""A process that belongs to another one ends when that one is gone, however it went."""

import asyncio
import contextlib
import os
from collections.abc import Sequence

import structlog

log = structlog.get_logger(__name__)

PARENT = "--parent"
_LOOK_SECONDS = 0.2


def parent_arguments() -> tuple[str, str]:
    """What to start a child of this process with."""
    return PARENT, str(os.getpid())


def parent_of(arguments: Sequence[str]) -> int | None:
    """The process that started this one, by its arguments; None: it belongs to nobody."""
    return int(arguments[arguments.index(PARENT) + 1]) if PARENT in arguments else None


async def until_over(stop: asyncio.Event, parent: int | None) -> None:
    """Wait until ``stop`` is set or ``parent`` has ended."""
    while not stop.is_set():
        if parent is not None and os.getppid() != parent:
            log.warning("orphaned", parent=parent)
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LOOK_SECONDS):
                await stop.wait()
