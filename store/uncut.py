"""Runs what must not be left half done when its caller is cancelled."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")


async def uncut(work: Awaitable[T], *, undo: Callable[[T], Awaitable[None]] | None = None) -> T:
    """The result of ``work``. A cancelled caller gets its CancelledError once the work is over, and not before.

    SQLite's driver runs each statement in a thread, where a cancellation does not reach it: a connection that is
    given up meanwhile keeps the file's only write lock, for every process. ``undo`` gets a result that nobody waits
    for.
    """
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await _settled(task)
        if undo is not None and not task.cancelled() and task.exception() is None:
            await _settled(asyncio.ensure_future(undo(task.result())))
        raise


async def _settled(task: asyncio.Future[T]) -> None:
    """Wait for the end whatever happens to the waiting."""
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError:
            # The caller raises the first one; a second one changes nothing.
            continue
    if not task.cancelled():
        # Read, so that nobody is told of an exception that was never looked at: the cancellation is raised instead.
        task.exception()
