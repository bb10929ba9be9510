"""What tests of the fleet do from outside: wait for a state, and ask whatever the store says that serves."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import aiohttp

from core.deployment import Deployment, DeploymentStatus
from core.errors import HoneError
from store.store import Store

PATIENCE = 120.0
"""Longest wait in seconds; generous, because machines that run tests are busy."""


CUT = "cut: "
"""How the failure of a request begins whose engine died while it answered."""


async def until(condition: Callable[[], bool | Awaitable[bool]], seconds: float = PATIENCE) -> None:
    """Wait until a condition holds; while the store is away it does not."""
    async with asyncio.timeout(seconds):
        while True:
            try:
                value = condition()
                if value if isinstance(value, bool) else await value:
                    return
            except HoneError:
                await asyncio.sleep(0.1)
            await asyncio.sleep(0.02)


async def stored_deployments(store: Store) -> list[Deployment]:
    """The Deployments as others see them, by Variant and number."""
    async with store.reading() as work:
        return sorted(await work.deployments.list(), key=lambda one: (one.variant, one.replica))


@asynccontextmanager
async def asking(store: Store, policy: str, version: int) -> AsyncIterator[list[str]]:
    """Ask all the time whatever the store says that holds ``policy@version``; what failed, one text each.

    A replica that was just lost may still be in the table that a request was routed by: as a gateway does, the
    request goes to another one then, and fails when there is none.
    """
    failures: list[str] = []
    stop = asyncio.Event()
    answered = 0

    async def ask(session: aiohttp.ClientSession, number: int) -> str | None:
        failed = "no replica holds it"
        holders = [
            (one.url, held.engine_model)
            for one in await stored_deployments(store)
            if one.status is DeploymentStatus.READY and (held := one.holding(policy, version)) is not None
        ]
        first = number % max(1, len(holders))
        for url, model in [*holders[first:], *holders[:first]]:
            body = {"model": model, "prompt": "hi", "max_tokens": 8, "stream": True}
            try:
                async with session.post(url + "/v1/completions", json=body) as response:
                    text = await response.text()
            except aiohttp.ClientOSError as error:
                failed = str(error)
                continue
            except aiohttp.ClientError as error:
                return f"{CUT}{error}"
            return None if response.status == 200 and "[DONE]" in text else text
        return failed

    async def client(session: aiohttp.ClientSession) -> None:
        nonlocal answered
        while not stop.is_set():
            failed = await ask(session, answered)
            answered += 1
            if failed is not None:
                failures.append(failed)
                await asyncio.sleep(0.1)

    async with aiohttp.ClientSession() as session, asyncio.TaskGroup() as group:
        for _ in range(3):
            group.create_task(client(session))
        try:
            yield failures
        finally:
            stop.set()
    assert answered > 0
