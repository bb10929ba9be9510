"""SetAsideSweep: on every machine, again and again, removes what was withdrawn from what drains have put aside there.

A withdrawal reaches the folder of the gateway that took it at once; the other machines' folders, and those of a
gateway that ended in the middle of one, it reaches by this.
"""

import asyncio
from pathlib import Path

import structlog

from core.background import cancelled
from core.tombstone import TombstoneSubject
from gateway.erasure.set_aside import remove_set_aside, set_aside_names
from store.store import Store

log = structlog.get_logger(__name__)

_SECONDS = 60.0


class SetAsideSweep:
    """Looks at start and at intervals; without anything put aside the store is not asked."""

    def __init__(self, *, store: Store, journals: Path, seconds: float = _SECONDS) -> None:
        self._store = store
        self._journals = journals
        self._seconds = seconds
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Sweep from now on."""
        self._task = asyncio.create_task(self._run(), name="set-aside sweep")

    async def stop(self) -> None:
        """Sweep no more."""
        if self._task is None:
            return
        await cancelled(self._task)
        self._task = None

    async def sweep(self) -> int:
        """Files removed. Raises what the store raises, and OSError."""
        episodes, tenants = await asyncio.to_thread(set_aside_names, self._journals)
        if not episodes:
            return 0
        async with self._store.reading() as work:
            gone = await work.withdrawals.among(episodes)
            erased = set()
            for tenant_id in sorted(tenants):
                found = await work.tombstones.list(tenant_id=tenant_id, limit=1_000_000)
                if any(one.subject is TombstoneSubject.TENANT for one in found):
                    erased.add(tenant_id)
        if not gone and not erased:
            return 0
        return await asyncio.to_thread(remove_set_aside, self._journals, gone, erased)

    async def _run(self) -> None:
        while True:
            try:
                removed = await self.sweep()
                if removed:
                    log.info("set_aside_removed", files=removed)
            except Exception as error:  # noqa: BLE001 - tried again; nothing may end this task
                log.warning("set_aside_not_swept", error=f"{type(error).__name__}: {error}")
            await asyncio.sleep(self._seconds)
