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
async def held(store: Store, policy: str, versions: Sequence[int], *, holder: str) -> AsyncIterator[None]:
    """Pin the versions for ``holder``, wait until they are live, and take the pins back at the end.

    A holder that is killed and comes back under the same name finds its own pins. Raises VersionNotServed when
    a version was refused, or does not become live within two minutes.
    """
    trained = [version for version in versions if version > 0]  # version 0 is the Base, and always there
    for version in trained:
        await _set_pin(store, policy, version, holder, wanted=True)
    await store.events.publish(VERSIONS)
    try:
        for version in trained:
            await _live(store, policy, version)
        yield
    finally:
        for version in trained:
            await _set_pin(store, policy, version, holder, wanted=False)
        await store.events.publish(VERSIONS)


async def _set_pin(store: Store, policy: str, version: int, holder: str, *, wanted: bool) -> None:
    async with store.transaction() as tx:
        stored = await tx.versions.get(policy, version)
        others = tuple(pin for pin in stored.pins if pin != holder)
        pins = (*others, holder) if wanted else others
        await tx.versions.update(stored.model_copy(update={"pins": pins}))


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
