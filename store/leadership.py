"""Leadership: of several processes that could do the same work, one does it and the others wait.

A leader renews its lease at a third of its length. One that cannot (the database is away, or it was held up for too
long) counts itself out when the lease has run out by its own clock, and says so at once; what it still writes after
another has taken over is refused, since writes of a leader are fenced by the lease's token.
"""

import asyncio
import contextlib
import os
import platform
from collections.abc import Callable

import structlog

from core.errors import LeaseLost, NotFound, StoreError
from core.ids import LEADER, new_id
from core.lease import Lease
from core.noun import now
from store.store import Store
from store.unit_of_work import UnitOfWork

log = structlog.get_logger(__name__)

_RENEWALS = 3
"""Renewals in the length of a lease."""
_MOST_LOOK_SECONDS = 1.0


def owner_name() -> str:
    """A name for this process that no other one has: machine, process id and an id."""
    return f"{platform.node()}:{os.getpid()}:{new_id(LEADER)}"


def fleet_lease(base: str) -> str:
    """The name of the lease of the fleet that leads for a Base."""
    return f"fleet:{base}"


class Leadership:
    """One process's claim to a lease: ``acquire``, act while ``leads``, ``fence`` every write, ``release``."""

    def __init__(
        self, *, store: Store, name: str, owner: str, seconds: float, clock: Callable[[], float] = now
    ) -> None:
        self._store = store
        self._name = name
        self._owner = owner
        self._seconds = seconds
        self._clock = clock
        self._lease: Lease | None = None
        self._until = 0.0
        """Event loop time at which the lease runs out, counted from before it was asked for."""
        self._lost = asyncio.Event()
        self._lost.set()
        self._renewing: asyncio.Task[None] | None = None

    @property
    def name(self) -> str:
        """The lease's name."""
        return self._name

    @property
    def leads(self) -> bool:
        """Whether this process may act now."""
        return self._lease is not None and asyncio.get_running_loop().time() < self._until

    async def acquire(self) -> Lease:
        """Wait until this process leads, however long that takes, and renew the lease from then on.

        A database that is away is waited for too.
        """
        await self._stop_renewing()
        told: str | None = None
        while True:
            try:
                async with asyncio.timeout(self._seconds):
                    lease = await self._try()
                    if lease is not None:
                        break
                    told = await self._tell_waiting(told)
            except (StoreError, TimeoutError) as error:
                log.warning("lease_not_asked_for", lease=self._name, error=str(error))
            await asyncio.sleep(min(self._seconds / _RENEWALS, _MOST_LOOK_SECONDS))
        self._lost.clear()
        self._renewing = asyncio.create_task(self._renew(), name=f"lease {self._name}")
        log.info("leading", lease=self._name, owner=self._owner, token=lease.token)
        return lease

    async def lost(self) -> None:
        """Return once this process does not lead, or does not lead any more."""
        await self._lost.wait()

    async def fence(self, work: UnitOfWork) -> None:
        """Call it first in every transaction of a leader: LeaseLost when another may lead, so nothing is written."""
        if self._lease is None or not self.leads:
            self._lose("it ran out")
            raise LeaseLost(f"this process does not lead '{self._name}' any more")
        try:
            await work.leases.fence(self._lease)
        except LeaseLost:
            self._lose("another process leads")
            raise

    async def release(self) -> None:
        """Lead no more; a process that waits takes over at once. A database that is away lets the lease run out."""
        await self._stop_renewing()
        lease, self._lease = self._lease, None
        self._lost.set()
        if lease is not None:
            try:
                async with asyncio.timeout(self._seconds), self._store.transaction() as work:
                    await work.leases.release(lease)
            except (StoreError, TimeoutError) as error:
                log.warning("lease_not_released", lease=self._name, error=str(error))

    async def _try(self) -> Lease | None:
        began = asyncio.get_running_loop().time()
        current = await self._current()
        if current is not None and current.until > self._clock() and current.owner != self._owner:
            return None
        async with self._store.transaction() as work:
            lease = await work.leases.acquire(self._name, self._owner, now=self._clock(), seconds=self._seconds)
        if lease is not None:
            self._lease, self._until = lease, began + self._seconds
        return lease

    async def _current(self) -> Lease | None:
        # Looking first keeps a process that waits out of the queue of writers.
        async with self._store.reading() as work:
            with contextlib.suppress(NotFound):
                return await work.leases.get(self._name)
        return None

    async def _tell_waiting(self, told: str | None) -> str | None:
        current = await self._current()
        if current is not None and current.owner != told:
            log.info("waiting_to_lead", lease=self._name, leader=current.owner, until=current.until)
            return current.owner
        return told

    async def _renew(self) -> None:
        loop = asyncio.get_running_loop()
        while self._lease is not None:
            await asyncio.sleep(min(self._seconds / _RENEWALS, max(0.0, self._until - loop.time())))
            began = loop.time()
            try:
                async with asyncio.timeout_at(self._until), self._store.transaction() as work:
                    renewed = await work.leases.renew(self._lease, now=self._clock(), seconds=self._seconds)
            except LeaseLost:
                self._lose("another process leads")
            except (StoreError, TimeoutError) as error:
                log.warning("lease_not_renewed", lease=self._name, error=str(error))
                if loop.time() >= self._until:
                    self._lose("it ran out")
            else:
                self._lease, self._until = renewed, began + self._seconds

    async def _stop_renewing(self) -> None:
        task, self._renewing = self._renewing, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def _lose(self, reason: str) -> None:
        if self._lease is not None:
            log.warning("lease_lost", lease=self._name, owner=self._owner, reason=reason)
        self._lease = None
        self._lost.set()
