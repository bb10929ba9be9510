"""Kills one replica under load, while a version is swapped in, and watches it leave routing and come back."""

import asyncio
import contextlib
import os
import signal
import time
from dataclasses import dataclass, field

from bench.hotswap.swaps import Made, Swap, Swapper
from bench.stack import Stack
from bench.streams import Answer
from core.deployment import Deployment, DeploymentStatus

_LOOK_SECONDS = 0.05
_INTO_THE_SWAP_SECONDS = 0.1


@dataclass
class Fault:
    """What happened. Times are ``time.monotonic`` of this process."""

    deployment_id: str
    killed: float = 0.0
    out: float | None = None
    """Its Deployment was not ready any more."""
    back: float | None = None
    """It was ready again."""
    swap: Swap | None = None
    """The swap during which it died."""
    answers: list[Answer] = field(default_factory=list)

    @property
    def cut(self) -> list[Answer]:
        """Streams of which tokens had arrived when the engine that sent them died: nobody can begin them anew."""
        return [answer for answer in self._failed if answer.begun and answer.started < self.killed]

    @property
    def failed(self) -> list[Answer]:
        """All other requests without a whole answer."""
        cut = {id(answer) for answer in self.cut}
        return [answer for answer in self._failed if id(answer) not in cut]

    @property
    def _failed(self) -> list[Answer]:
        return [answer for answer in self.answers if answer.error is not None]


async def kill_one(stack: Stack, swapper: Swapper, made: Made, *, back_seconds: float) -> Fault:
    """SIGKILL to one standard replica just after a version was published; returns when it is back, or too late."""
    victim = next(one for one in await stack.deployments() if one.variant == "standard" and one.pid is not None)
    fault = Fault(victim.id)
    swap = asyncio.create_task(swapper.swap(made))
    await asyncio.sleep(_INTO_THE_SWAP_SECONDS)
    assert victim.pid is not None
    fault.killed = time.monotonic()
    # Its group: the server and the engine core that it started.
    os.killpg(victim.pid, signal.SIGKILL)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(back_seconds):
            await _until(stack, victim, ready=False)
            fault.out = time.monotonic()
            await _until(stack, victim, ready=True)
            fault.back = time.monotonic()
    fault.swap = await swap
    return fault


async def _until(stack: Stack, victim: Deployment, *, ready: bool) -> None:
    while True:
        row = next((one for one in await stack.deployments() if one.id == victim.id), None)
        if (row is not None and row.status is DeploymentStatus.READY) is ready:
            return
        await asyncio.sleep(_LOOK_SECONDS)
