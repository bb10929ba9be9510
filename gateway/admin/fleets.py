"""Fleets: which process acts for each Base, and which replicas it is to have."""

from collections import Counter

from fastapi import APIRouter
from pydantic import ValidationError

from core.errors import ConfigurationError, InvalidRequest, NotFound
from core.fleet_plan import FleetPlan, plan_of, planned
from core.lease import Lease
from core.noun import now
from gateway.admin.schemas import FleetPlanRequest, FleetView
from gateway.audit import audit_record
from gateway.callers import PathId
from gateway.dependencies import FIND_ERRORS, READ_ERRORS, WRITE_ERRORS, GatewayParts, Reader, Writer
from serving.capabilities import check_fleet
from store.events import FLEETS
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


@router.get("/{base}/plan", summary="Show a fleet's plan", responses=FIND_ERRORS)
async def get_plan(base: PathId, gateway: GatewayParts, _key: Reader) -> FleetPlan:
    """The replicas that are wanted: what was asked for last, else what this gateway's configuration says."""
    async with gateway.store.reading() as work:
        await work.bases.get(base)
        return await work.fleet_plans.find(base) or plan_of(base, gateway.config)


@router.put("/{base}/plan", summary="Change which replicas are wanted", responses=WRITE_ERRORS)
async def put_plan(base: PathId, body: FleetPlanRequest, gateway: GatewayParts, key: Writer) -> FleetPlan:
    """Have the leading fleet launch, attach, drain and end engines until they are these."""
    try:
        plan = FleetPlan(base=base, launch=body.launch, attach=body.attach, changed_by=key.name)
    except ValidationError as error:
        raise InvalidRequest(error.errors()[0]["msg"].removeprefix("Value error, ")) from error
    try:
        check_fleet(planned(gateway.config, plan))
    except ConfigurationError as error:
        raise InvalidRequest(error.message, hint=error.hint) from error
    async with gateway.store.transaction() as work:
        await work.bases.get(base)
        await work.fleet_plans.put(plan)
        await work.audit.add(audit_record(key, "fleet.plan", base, body.model_dump(mode="json")))
    await gateway.store.events.publish(FLEETS, {"base": base})
    return plan


@router.delete("/{base}/plan", summary="Go back to the configured replicas", responses=WRITE_ERRORS)
async def delete_plan(base: PathId, gateway: GatewayParts, key: Writer) -> FleetPlan:
    """Forget what was asked for: the fleet's configuration says which replicas there are."""
    async with gateway.store.transaction() as work:
        await work.bases.get(base)
        await work.fleet_plans.remove(base)
        await work.audit.add(audit_record(key, "fleet.plan", base, {}))
    await gateway.store.events.publish(FLEETS, {"base": base})
    return plan_of(base, gateway.config)


async def _lease(work: UnitOfWork, base: str) -> Lease | None:
    try:
        return await work.leases.get(fleet_lease(base))
    except NotFound:
        return None
