"""StoredResponses in the store."""

from collections.abc import Collection

from sqlalchemy import delete

from core.errors import NotFound
from core.stored_response import StoredResponse
from store.connection import Connection
from store.repositories.base import Repository
from store.repositories.tombstones import Withdrawals
from store.tables.stored_responses import STORED_RESPONSES


class StoredResponses(Repository[StoredResponse]):
    """StoredResponses by id, each within its Tenant: another Tenant's does not exist."""

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection, StoredResponse, STORED_RESPONSES)

    async def add(self, stored: StoredResponse) -> None:
        """Add a new one; raises Conflict. Of a withdrawn Episode or an erased Tenant nothing is kept."""
        episodes, tenants = await Withdrawals(self._connection).refused([stored.episode_id], [stored.tenant_id])
        if not episodes and not tenants:
            await self._add(stored)

    async def get(self, tenant_id: str, response_id: str) -> StoredResponse:
        """One response of the Tenant; raises NotFound."""
        found = await self.get_many(tenant_id, [response_id])
        if response_id not in found:
            raise self._missing(response_id)
        return found[response_id]

    async def get_many(self, tenant_id: str, response_ids: Collection[str]) -> dict[str, StoredResponse]:
        """Those of these responses that the Tenant has, by id."""
        found: dict[str, StoredResponse] = {}
        ordered = sorted(set(response_ids))
        for start in range(0, len(ordered), 500):
            query = self._where(self._select(), tenant_id=tenant_id)
            page = query.where(STORED_RESPONSES.c.id.in_(ordered[start : start + 500]))
            found.update({stored.id: stored for stored in await self._all(page)})
        return found

    async def delete(self, tenant_id: str, response_id: str) -> None:
        """Forget one response of the Tenant; raises NotFound."""
        wanted = delete(STORED_RESPONSES).where(
            STORED_RESPONSES.c.id == response_id, STORED_RESPONSES.c.tenant_id == tenant_id
        )
        if await self._connection.change(wanted) == 0:
            raise self._missing(response_id)

    def _missing(self, *key: object) -> NotFound:
        return NotFound(f"there is no response '{key[0]}'", hint="it was not stored, or it was deleted")
