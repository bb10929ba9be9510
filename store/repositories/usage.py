"""Usage in the store: added up per Tenant, key and month."""

from collections.abc import Sequence

from sqlalchemy import select

from core.usage import Usage
from store.connection import Connection
from store.tables.usage import USAGE

_COUNTED = ("requests", "prompt_tokens", "completion_tokens", "cost_microdollars")


class UsageCounters:
    """What keys used, month by month."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def add(self, usages: Sequence[Usage]) -> None:
        """Add to what is there already, in one order, so that two gateways cannot wait for each other."""
        for usage in sorted(usages, key=lambda each: (each.tenant_id, each.month, each.key_id)):
            statement = self._connection.insert(USAGE).values(usage.model_dump())
            sums = {name: USAGE.c[name] + statement.excluded[name] for name in _COUNTED}
            key = [column.name for column in USAGE.primary_key]
            await self._connection.change(statement.on_conflict_do_update(index_elements=key, set_=sums))

    async def list(self, tenant_id: str, month: str | None = None) -> list[Usage]:
        """A Tenant's rows (of a month), newest month first, keys in order of id."""
        query = select(USAGE).where(USAGE.c.tenant_id == tenant_id)
        if month is not None:
            query = query.where(USAGE.c.month == month)
        rows = await self._connection.rows(query.order_by(USAGE.c.month.desc(), USAGE.c.key_id))
        return [Usage.model_validate(dict(row._mapping)) for row in rows]
