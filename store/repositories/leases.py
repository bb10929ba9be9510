"""Leases in the store: taken and renewed in single statements, so that two processes cannot both succeed.

Times are the caller's clock: machines that share a lease must agree to well within its length (NTP). A wrong clock
costs a change of leader, never a second one whose writes count: those are checked against the token.
"""

from sqlalchemy import or_, select, update

from core.errors import LeaseLost, NotFound
from core.lease import Lease
from store.connection import Connection
from store.tables.leases import LEASES

_IDLE_SECONDS = 10
"""A leader that freezes inside a transaction, or whose network is gone, holds up its follower for no longer."""


class Leases:
    """Leases by name. A row stays for good, so that its token can only grow."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def acquire(self, name: str, owner: str, *, now: float, seconds: float) -> Lease | None:
        """Take a lease that is free, has run out, or is the owner's already; None while another holds it."""
        lease = Lease(name=name, owner=owner, token=1, until=now + seconds)
        insert = self._connection.insert(LEASES).values(lease.model_dump())
        statement = insert.on_conflict_do_update(
            index_elements=[LEASES.c.name],
            set_={"owner": owner, "token": LEASES.c.token + 1, "until": lease.until},
            where=or_(LEASES.c.until <= now, LEASES.c.owner == owner),
        ).returning(*LEASES.c)
        rows = await self._connection.change_returning(statement)
        return Lease.model_validate(dict(rows[0]._mapping)) if rows else None

    async def renew(self, lease: Lease, *, now: float, seconds: float) -> Lease:
        """Hold it for ``seconds`` from ``now`` on, even if it ran out and nobody took it. Raises LeaseLost."""
        return await self._change(lease, until=now + seconds)

    async def release(self, lease: Lease) -> None:
        """Give it up; one that was lost is none of the caller's business any more."""
        statement = update(LEASES).where(LEASES.c.name == lease.name, LEASES.c.token == lease.token)
        await self._connection.change(statement.values(until=0.0))

    async def fence(self, lease: Lease) -> None:
        """Raise LeaseLost unless ``lease`` is still the newest; nobody takes it before this transaction ends."""
        await self._connection.bound_idleness(_IDLE_SECONDS)
        query = select(LEASES.c.token).where(LEASES.c.name == lease.name).with_for_update(read=True)
        row = await self._connection.row(query)
        if row is None or row.token != lease.token:
            raise _lost(lease)

    async def get(self, name: str) -> Lease:
        """The lease as it stands, run out or not; raises NotFound when nobody ever had it."""
        row = await self._connection.row(select(LEASES).where(LEASES.c.name == name))
        if row is None:
            raise NotFound(f"there is no Lease {name}")
        return Lease.model_validate(dict(row._mapping))

    async def _change(self, lease: Lease, *, until: float) -> Lease:
        held = update(LEASES).where(LEASES.c.name == lease.name, LEASES.c.token == lease.token)
        rows = await self._connection.change_returning(held.values(until=until).returning(*LEASES.c))
        if not rows:
            raise _lost(lease)
        return Lease.model_validate(dict(rows[0]._mapping))


def _lost(lease: Lease) -> LeaseLost:
    return LeaseLost(f"the lease '{lease.name}' is no longer held under token {lease.token}")
