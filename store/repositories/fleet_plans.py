"""FleetPlans in the store."""

from core.errors import NotFound
from core.fleet_plan import FleetPlan
from store.connection import Connection
from store.repositories.base import Repository
from store.tables.fleet_plans import FLEET_PLANS


class FleetPlans(Repository[FleetPlan]):
    """At most one for each Base."""

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection, FleetPlan, FLEET_PLANS)

    async def find(self, base: str) -> FleetPlan | None:
        """The plan of a Base; None: the configuration says what there is."""
        try:
            return await self._get(base)
        except NotFound:
            return None

    async def put(self, plan: FleetPlan) -> None:
        """Add or replace."""
        await self._put(plan)

    async def remove(self, base: str) -> None:
        """Forget the plan, if there is one."""
        await self._connection.change(FLEET_PLANS.delete().where(FLEET_PLANS.c.base == base))
