"""Pins: who needs a PolicyVersion keeps it loaded, whatever is promoted meanwhile.

The fleet loads pinned versions, those again that it had unloaded. Version 0 is the Base: always there, and
never pinned. A holder that is killed and comes back under the same name finds its own pins.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from core.errors import Conflict, VersionNotServed
from core.policy import ServingStatus
from store.events import VERSIONS
from store.store import Store

LOAD_SECONDS = 120.0
"""How long a version may take to become live."""
_LOOK_AGAIN_SECONDS = 1.0


@asynccontextmanager
async def held(store: Store, policy: str, versions: Sequence[int], *, holder: str) -> AsyncIterator[None]:
    """Pin the versions for ``holder``, wait until they are live, and take the pins back at the end.

    Raises VersionNotServed when a version was refused, or does not become live within two minutes.
    """
    pinned: list[int] = []
    try:
        for version in versions:
            await pin(store, policy, version, holder)
            pinned.append(version)
        for version in pinned:
            await wait_live(store, policy, version, LOAD_SECONDS)
        yield
    finally:
        for version in pinned:
            await unpin(store, policy, version, holder)


async def pin(store: Store, policy: str, version: int, holder: str) -> None:
    """Have a version loaded for ``holder``; a second time changes nothing.

    Raises NotFound, and Conflict for a version whose checkpoint folder was deleted.
    """
    await _set_pin(store, policy, version, holder, wanted=True)


async def unpin(store: Store, policy: str, version: int, holder: str) -> None:
    """Take ``holder``'s pin back, if it has one. Raises NotFound."""
    await _set_pin(store, policy, version, holder, wanted=False)


async def wait_live(store: Store, policy: str, version: int, seconds: float) -> None:
    """Wait until the version is live. Raises VersionNotServed when it was refused, or after ``seconds``."""
    try:
        async with asyncio.timeout(seconds), store.events.subscribe([VERSIONS]) as subscription:
            while True:
                async with store.reading() as tx:
                    stored = await tx.versions.get(policy, version)
                if stored.serving is ServingStatus.LIVE:
                    return
                if stored.serving is ServingStatus.REFUSED:
                    raise VersionNotServed(f"the fleet refused {stored.label}: {stored.serving_reason}")
                await subscription.wait(_LOOK_AGAIN_SECONDS)
    except TimeoutError as error:
        raise VersionNotServed(
            f"{policy}@{version} was not served within {seconds:.0f} s", hint="is the fleet running?"
        ) from error


async def _set_pin(store: Store, policy: str, version: int, holder: str, *, wanted: bool) -> None:
    if version == 0:
        return
    async with store.transaction() as tx:
        stored = await tx.versions.get(policy, version, lock=True)
        if (holder in stored.pins) is wanted:
            return
        if wanted and stored.files_removed_at is not None:
            raise Conflict(
                f"the files of '{stored.label}' were deleted", hint="choose a version whose files are kept"
            )
        others = tuple(pin for pin in stored.pins if pin != holder)
        pins = (*others, holder) if wanted else others
        await tx.versions.update(stored.model_copy(update={"pins": pins}))
    await store.events.publish(VERSIONS, {"policy": policy, "version": version})
