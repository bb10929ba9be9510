"""One way to end a command early: SIGINT, SIGTERM and SIGHUP cancel its work once, and its blocks clean up."""

import asyncio
import signal
from collections.abc import Coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
EXIT_INTERRUPTED = 130


async def until_signal(work: Coroutine[Any, Any, Result]) -> Result | None:
    """Run ``work``; the first signal cancels it and None comes back once it has cleaned up.

    Further signals are ignored meanwhile. What ``work`` raises, also while it cleans up, is raised.
    """
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in _SIGNALS:
        loop.add_signal_handler(number, stop.set)
    running = asyncio.create_task(work)
    stopping = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait({running, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if running.done():
            return running.result()
        running.cancel()
        await asyncio.wait({running})
        return None if running.cancelled() else running.result()
    finally:
        stopping.cancel()
        for number in _SIGNALS:
            loop.remove_signal_handler(number)
