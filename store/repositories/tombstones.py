"""Tombstones and Withdrawals in the store."""

from collections.abc import Collection, Iterable

from sqlalchemy import func, select

from core.tombstone import Tombstone, TombstoneSubject, Withdrawal
from store.connection import Connection
from store.repositories.base import Repository
from store.repositories.checkpoints import LINEAGE_LOCK
from store.tables.episodes import EPISODES
from store.tables.lineage import LINEAGE
from store.tables.tenants import TENANTS
from store.tables.tombstones import TOMBSTONES, WITHDRAWALS

_PAGE = 1_000


class Tombstones(Repository[Tombstone]):
    """Proofs of erasure; only ever added."""

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection, Tombstone, TOMBSTONES)

    async def add(self, tombstone: Tombstone) -> None:
        """Add; raises Conflict when the id is taken."""
        await self._add(tombstone)

    async def update(self, tombstone: Tombstone) -> None:
        """Replace, to add what was counted; raises NotFound."""
        await self._update(tombstone)

    async def list(self, *, tenant_id: str | None = None, limit: int = 100) -> list[Tombstone]:
        """The newest (of a Tenant), newest first."""
        query = self._where(self._select(), tenant_id=tenant_id)
        return await self._all(query.order_by(TOMBSTONES.c.created_at.desc(), TOMBSTONES.c.id.desc()).limit(limit))


class Withdrawals(Repository[Withdrawal]):
    """Episodes that are gone for good."""

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection, Withdrawal, WITHDRAWALS)

    async def add_many(self, withdrawals: Collection[Withdrawal]) -> int:
        """Add those not known yet; the number added. What is read of lineages afterwards is whole."""
        await self._connection.exclusive(LINEAGE_LOCK)
        return await self._add_new(sorted(withdrawals, key=lambda one: one.episode_id))

    async def list(self, *, tenant_id: str | None = None, after: str = "", limit: int = 1_000) -> list[Withdrawal]:
        """A page in order of Episode id; ``after`` is the last id of the page before."""
        query = self._where(self._select(), tenant_id=tenant_id).where(WITHDRAWALS.c.episode_id > after)
        return await self._all(query.order_by(WITHDRAWALS.c.episode_id).limit(limit))

    async def among(self, episode_ids: Iterable[str]) -> set[str]:
        """Those of these Episodes that were withdrawn."""
        found: set[str] = set()
        ordered = sorted(set(episode_ids))
        for start in range(0, len(ordered), _PAGE):
            chosen = WITHDRAWALS.c.episode_id.in_(ordered[start : start + _PAGE])
            found |= {
                row.episode_id for row in await self._connection.rows(select(WITHDRAWALS.c.episode_id).where(chosen))
            }
        return found

    async def seen_by(self, checkpoint_ids: Collection[str]) -> int:
        """How many withdrawn Episodes any of these Checkpoints saw."""
        query = select(func.count(func.distinct(LINEAGE.c.episode_id)).label("n")).where(
            LINEAGE.c.checkpoint_id.in_(list(checkpoint_ids)),
            LINEAGE.c.episode_id.in_(select(WITHDRAWALS.c.episode_id)),
        )
        row = await self._connection.row(query)
        return 0 if row is None else int(row.n)

    async def refused(self, episode_ids: Collection[str], tenant_ids: Collection[str]) -> tuple[set[str], set[str]]:
        """Those of these Episodes and Tenants of which nothing may be stored any more.

        Until this transaction ends nobody withdraws the others: what it writes of them is found and erased.
        """
        tenants, episodes = sorted(set(tenant_ids)), sorted(set(episode_ids))
        held = select(TENANTS.c.id).where(TENANTS.c.id.in_(tenants)).order_by(TENANTS.c.id)
        await self._connection.rows(held.with_for_update(read=True))
        kept = select(EPISODES.c.id).where(EPISODES.c.id.in_(episodes)).order_by(EPISODES.c.id)
        await self._connection.rows(kept.with_for_update(read=True))
        erased = select(TOMBSTONES.c.tenant_id).where(
            TOMBSTONES.c.tenant_id.in_(tenants), TOMBSTONES.c.subject == TombstoneSubject.TENANT
        )
        return await self.among(episodes), {row.tenant_id for row in await self._connection.rows(erased)}
