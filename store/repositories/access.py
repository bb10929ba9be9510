"""Tenants, ApiKeys and AuditRecords in the store."""

from sqlalchemy import or_

from core.access import ApiKey, AuditRecord, Tenant
from store.connection import Connection
from store.repositories.base import Repository
from store.tables.api_keys import API_KEYS
from store.tables.audit_records import AUDIT_RECORDS
from store.tables.tenants import TENANTS


class Tenants(Repository[Tenant]):
    """Tenants by id."""

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection, Tenant, TENANTS)

    async def add(self, tenant: Tenant) -> None:
        """Add; raises Conflict when the id is taken."""
        await self._add(tenant)

    async def get(self, tenant_id: str, *, lock: bool = False) -> Tenant:
        """One Tenant; raises NotFound. With ``lock``, nobody else changes it before this transaction ends."""
        return await self._get(tenant_id, lock=lock)

    async def update(self, tenant: Tenant) -> None:
        """Replace; raises NotFound."""
        await self._update(tenant)

    async def list(self) -> list[Tenant]:
        """All Tenants in order of id."""
        return await self._all(self._select().order_by(TENANTS.c.id))


class ApiKeys(Repository[ApiKey]):
    """ApiKeys by id and by hash."""

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection, ApiKey, API_KEYS)

    async def add(self, key: ApiKey) -> None:
        """Add; raises Conflict when the id or the hash is taken, or the Tenant is unknown."""
        await self._add(key)

    async def by_hash(self, key_hash: str) -> ApiKey | None:
        """The key with this hash now or before its last rotation, revoked or not, expired or not."""
        found = or_(API_KEYS.c.key_hash == key_hash, API_KEYS.c.previous_hash == key_hash)
        return await self._first(self._select().where(found))

    async def get(self, key_id: str, *, lock: bool = False) -> ApiKey:
        """One key; raises NotFound. With ``lock``, nobody else changes it before this transaction ends."""
        return await self._get(key_id, lock=lock)

    async def list(self, tenant_id: str | None = None) -> list[ApiKey]:
        """Keys (of a Tenant), oldest first."""
        query = self._where(self._select(), tenant_id=tenant_id)
        return await self._all(query.order_by(API_KEYS.c.created_at, API_KEYS.c.id))

    async def update(self, key: ApiKey) -> None:
        """Replace; raises NotFound."""
        await self._update(key)


class AuditRecords(Repository[AuditRecord]):
    """What administrators did; records are only ever added."""

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection, AuditRecord, AUDIT_RECORDS)

    async def add(self, record: AuditRecord) -> None:
        """Add; raises Conflict when the id is taken."""
        await self._add(record)

    async def list(self, limit: int = 100) -> list[AuditRecord]:
        """The newest records, newest first."""
        query = self._select().order_by(AUDIT_RECORDS.c.created_at.desc(), AUDIT_RECORDS.c.id.desc())
        return await self._all(query.limit(limit))
