"""The end of tasks that run in the background."""

import asyncio
import contextlib
from typing import Any


async def cancelled(task: asyncio.Task[Any]) -> None:
    """Cancel a task and wait for its end. Raises what it failed with, if it had failed before."""
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
