"""A process of its own for the tests of the store: ``python store_process.py ROLE DATABASE_URL DATA_DIR``.

It says what it did on stdout, one JSON line each, and goes on when it reads a line on stdin.
"""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

from core.config.schema import HoneConfig, StoreSection
from core.errors import LeaseLost
from store.events import VERSIONS
from store.store import Store

LEASE_SECONDS = 1.0


def say(**what: Any) -> None:
    """Report to the test."""
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


async def go_ahead() -> None:
    """Wait for the test."""
    await asyncio.to_thread(sys.stdin.readline)


async def work(store: Store) -> None:
    """Claim one job, keep its lease until told to go ahead, then try to finish it."""
    (job,) = await store.queue.claim(["work"], "process", lease_seconds=LEASE_SECONDS)
    say(claimed=job.id, token=job.token)
    told = asyncio.create_task(go_ahead())
    try:
        while not (await asyncio.wait([told], timeout=LEASE_SECONDS / 4))[0]:
            await store.queue.heartbeat(job, LEASE_SECONDS)
        await store.queue.complete(job, {"by": "process"})
        say(result="taken")
    except LeaseLost:
        say(result="refused")


async def wait_for_versions(store: Store) -> None:
    """Say when the event came."""
    async with store.events.subscribe([VERSIONS]) as subscription:
        say(ready=True)
        say(woken=await subscription.wait(60))


async def write(store: Store) -> None:
    """Mint versions and add jobs as fast as it goes."""
    say(ready=True)
    await go_ahead()
    minted = []
    for number in range(15):
        async with store.transaction() as unit:
            minted.append((await unit.versions.mint("coder", kind="lora", origin="grpo")).version)
        await store.queue.enqueue("work", {"n": number})
    say(minted=minted)


ROLES = {"work": work, "wait_for_versions": wait_for_versions, "write": write}


async def main(role: str, url: str, folder: str) -> None:
    """Open the Store and play the role."""
    store = await Store.open(HoneConfig(data_dir=Path(folder), store=StoreSection(url=url)))
    try:
        await ROLES[role](store)
    finally:
        await store.close()


asyncio.run(main(*sys.argv[1:]))
