"""Fleets: which process acts for each Base."""

from collections import Counter

from fastapi import APIRouter

from core.errors import NotFound
from core.lease import Lease
from core.noun import now
from gateway.admin.schemas import FleetView
from gateway.dependencies import READ_ERRORS, GatewayParts, Reader
from store.leadership import fleet_lease
from store.unit_of_work import UnitOfWork

router = APIRouter(prefix="/fleets", tags=["Deployments"])


@router.get("", summary="List fleets", responses=READ_ERRORS)
async def list_fleets(gateway: GatewayParts, _key: Reader) -> list[FleetView]:
    """The leading fleet process of each Base, and how many replicas it has in which state."""
    async with gateway.store.reading() as work:
        views = []
        for base in await work.bases.list():
            lease = await _lease(work, base.name)
            statuses = Counter(one.status.value for one in await work.deployments.list(base.name))
            views.append(
                FleetView(
                    base=base.name,
                    leader=None if lease is None else lease.owner,
                    leads=lease is not None and lease.until > now(),
                    until=None if lease is None else lease.until,
                    deployments=dict(statuses),
                )
            )
        return views


async def _lease(work: UnitOfWork, base: str) -> Lease | None:
    try:
        return await work.leases.get(fleet_lease(base))
    except NotFound:
        return None
