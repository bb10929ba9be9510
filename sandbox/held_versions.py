"""Keeps PolicyVersions loaded for the length of a block: an Evaluation must not lose a side half-way."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from core.errors import VersionNotServed
from core.policy import PolicyVersion, ServingStatus
from store.events import VERSIONS
from store.store import Store

_LOAD_SECONDS = 120.0


@asynccontextmanager
async def held(store: Store, policy: str, versions: Sequence[int]) -> AsyncIterator[None]:
    """Pin the versions, wait until they are live, and unpin at the end those that were not pinned before.

    Raises VersionNotServed when one was refused, or does not become live within two minutes.
    """
    fresh = [version for version in versions if await _pin(store, policy, version)]
    await store.events.publish(VERSIONS)
    try:
        for version in versions:
            await _live(store, policy, version)
        yield
    finally:
        for version in fresh:
            await _unpin(store, policy, version)
        await store.events.publish(VERSIONS)


async def _pin(store: Store, policy: str, version: int) -> bool:
    """Whether the version had to be pinned."""
    async with store.transaction() as tx:
        stored = await tx.versions.get(policy, version)
        if stored.pinned:
            return False
        await tx.versions.update(stored.model_copy(update={"pinned": True}))
        return True


async def _unpin(store: Store, policy: str, version: int) -> None:
    async with store.transaction() as tx:
        stored = await tx.versions.get(policy, version)
        await tx.versions.update(stored.model_copy(update={"pinned": False}))


async def _live(store: Store, policy: str, version: int) -> None:
    try:
        async with asyncio.timeout(_LOAD_SECONDS), store.events.subscribe([VERSIONS]) as subscription:
            while True:
                async with store.reading() as tx:
                    stored: PolicyVersion = await tx.versions.get(policy, version)
                if stored.serving is ServingStatus.LIVE:
                    return
                if stored.serving is ServingStatus.REFUSED:
                    raise VersionNotServed(f"{stored.label} was refused: {stored.serving_reason}")
                await subscription.wait(1.0)
    except TimeoutError as error:
        raise VersionNotServed(
            f"{policy}@{version} did not become live within {_LOAD_SECONDS:.0f} s", hint="is the fleet running?"
        ) from error
