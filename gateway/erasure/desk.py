"""ErasureDesk: withdraws Episodes and erases Tenants, and leaves a Tombstone without content as proof.

From the commit on the content is gone from the store and the blobs; what still lies in a journal is dropped when it
is drained, because the Episode or the Tenant is known to be gone.
"""

import asyncio
from collections import Counter
from pathlib import Path

import structlog

from core import ids
from core.access import ApiKey
from core.errors import Conflict, InvalidRequest, NotFound
from core.tombstone import Tombstone, TombstoneSubject, Withdrawal
from gateway.audit import audit_record
from gateway.auth import Authenticator
from gateway.erasure.set_aside import remove_set_aside
from gateway.erasure.sweep import SetAsideSweep
from gateway.recorder import Recorder
from gateway.registry.lineage import versions_of
from store.events import TURNS, VERSIONS
from store.store import Store
from store.taint import mark_withdrawn
from store.unit_of_work import UnitOfWork

log = structlog.get_logger(__name__)

_PAGE = 100
_FLUSH_SECONDS = 5.0


class ErasureDesk:
    """Withdraws and erases."""

    def __init__(self, *, store: Store, recorder: Recorder, authenticator: Authenticator, journals: Path) -> None:
        self._store = store
        self._recorder = recorder
        self._authenticator = authenticator
        self._journals = journals
        self.sweep = SetAsideSweep(store=store, journals=journals)
        """Started with the gateway."""

    async def withdraw(self, key: ApiKey, episode_id: str, *, tenant_id: str | None = None) -> Tombstone:
        """Erase an Episode and all that came of it; with ``tenant_id``, only one of that Tenant. Raises NotFound."""
        await self._recorder.flush_all(_FLUSH_SECONDS)
        async with self._store.transaction() as work:
            episode = await work.episodes.get(episode_id, lock=True)
            if tenant_id is not None and episode.tenant_id != tenant_id:
                raise NotFound(f"there is no Episode '{episode_id}'", param="episode_id")
            tombstone = Tombstone(
                id=ids.new_id(ids.TOMBSTONE),
                tenant_id=episode.tenant_id,
                subject=TombstoneSubject.EPISODE,
                subject_id=episode_id,
                by=key.id,
            )
            counts, versions = await self._erase_episodes(work, [episode_id], tombstone)
            tombstone = tombstone.model_copy(update={"counts": dict(counts), "versions": tuple(sorted(versions))})
            await work.tombstones.add(tombstone)
            detail: dict[str, object] = {"tombstone": tombstone.id, "counts": dict(counts)}
            await work.audit.add(audit_record(key, "episode.withdraw", episode_id, detail))
        await self._after({episode_id}, set())
        return tombstone

    async def erase_tenant(self, key: ApiKey, tenant_id: str, *, confirm: str) -> Tombstone:
        """Erase a Tenant with all that is held about it; what failed half-way is finished by asking again.

        Raises NotFound; InvalidRequest unless ``confirm`` is the Tenant's id; Conflict for the key's own Tenant.
        """
        if confirm != tenant_id:
            raise InvalidRequest("the erasure is not confirmed", hint="send the Tenant's id as 'confirm'")
        if key.tenant_id == tenant_id:
            raise Conflict("this key belongs to that Tenant", hint="use an admin key of another Tenant")
        tombstone = await self._begin(key, tenant_id)
        self._authenticator.forget_tenant(tenant_id)
        await self._recorder.flush_all(_FLUSH_SECONDS)
        counts, versions = Counter(tombstone.counts), set(tombstone.versions)
        while True:
            async with self._store.transaction() as work:
                found = await work.erasure.episodes_of(tenant_id, limit=_PAGE)
                removed, seen = await self._erase_episodes(work, found, tombstone)
                counts, versions = counts + removed, versions | seen
                if not found:
                    rest, blobs = await work.erasure.tenant(tenant_id)
                    await self._delete_blobs(blobs)
                    counts = counts + rest + Counter(blobs=len(blobs))
                tombstone = tombstone.model_copy(update={"counts": dict(counts), "versions": tuple(sorted(versions))})
                await work.tombstones.update(tombstone)
                if not found:
                    detail: dict[str, object] = {"tombstone": tombstone.id, "counts": dict(counts)}
                    await work.audit.add(audit_record(key, "tenant.erase", tenant_id, detail))
                    break
        await self._after(set(), {tenant_id})
        return tombstone

    async def _begin(self, key: ApiKey, tenant_id: str) -> Tombstone:
        """From here on nothing of the Tenant is stored any more, and its keys are not valid."""
        async with self._store.transaction() as work:
            await work.tenants.get(tenant_id, lock=True)
            known = [one for one in await work.tombstones.list(tenant_id=tenant_id) if one.subject_id == tenant_id]
            if known:
                return known[0]
            tombstone = Tombstone(
                id=ids.new_id(ids.TOMBSTONE),
                tenant_id=tenant_id,
                subject=TombstoneSubject.TENANT,
                subject_id=tenant_id,
                by=key.id,
            )
            await work.tombstones.add(tombstone)
            for one in await work.api_keys.list(tenant_id):
                await work.api_keys.update(one.model_copy(update={"revoked": True}))
        return tombstone

    async def _erase_episodes(
        self, work: UnitOfWork, episode_ids: list[str], tombstone: Tombstone
    ) -> tuple[Counter[str], set[str]]:
        counts: Counter[str] = Counter()
        versions: set[str] = set()
        policies: dict[str, set[int]] = {}
        queue, done = list(episode_ids), set[str]()
        while queue:
            episode_id = queue.pop()
            if episode_id in done:
                continue
            done.add(episode_id)
            # Attempts at a Task that was mined from it hold its words too.
            queue += await work.erasure.attempts(episode_id)
            gone = Withdrawal(episode_id=episode_id, tenant_id=tombstone.tenant_id, tombstone_id=tombstone.id)
            # Before the versions are read: from here on no other transaction publishes one.
            await work.withdrawals.add_many([gone])
            for seen in await versions_of(work, episode_id):
                versions.add(f"{seen.policy}@{seen.version}")
                policies.setdefault(seen.policy, set()).add(seen.version)
            removed, blobs = await work.erasure.episode(tombstone.tenant_id, episode_id)
            # Before the commit: a blob that outlived its row would never be found again.
            await self._delete_blobs(blobs)
            counts += removed + Counter(blobs=len(blobs))
        for policy, numbers in sorted(policies.items()):
            await mark_withdrawn(work, policy, numbers)
        return counts, versions

    async def _delete_blobs(self, blobs: list[str]) -> None:
        for blob in blobs:
            await self._store.blobs.delete(blob)

    async def _after(self, episodes: set[str], tenants: set[str]) -> None:
        await asyncio.to_thread(remove_set_aside, self._journals, episodes, tenants)
        await self._store.events.publish(TURNS, {"withdrawn": len(episodes)})
        await self._store.events.publish(VERSIONS, {})
        log.info("erased", episodes=sorted(episodes), tenants=sorted(tenants))
