"""Tenants: created, changed, and what they used."""

from typing import Annotated

from fastapi import APIRouter, Query

from core import ids
from core.access import Tenant
from core.usage import Usage
from gateway.admin.schemas import NewTenant, TenantChange
from gateway.audit import audit_record
from gateway.callers import PathId
from gateway.dependencies import FIND_ERRORS, READ_ERRORS, WRITE_ERRORS, GatewayParts, Reader, Writer

router = APIRouter(prefix="/tenants", tags=["Tenants"])


@router.get("", summary="List Tenants", responses=READ_ERRORS)
async def list_tenants(gateway: GatewayParts, _key: Reader) -> list[Tenant]:
    """All Tenants in order of id."""
    async with gateway.store.reading() as work:
        return await work.tenants.list()


@router.post("", summary="Create a Tenant", status_code=201, responses=WRITE_ERRORS)
async def create_tenant(body: NewTenant, gateway: GatewayParts, key: Writer) -> Tenant:
    """A new Tenant without keys; it grants no training unless the body says so."""
    tenant = Tenant(id=ids.new_id(ids.TENANT), **dict(body))
    async with gateway.store.transaction() as work:
        await work.tenants.add(tenant)
        await work.audit.add(audit_record(key, "tenant.create", tenant.id, body.model_dump(mode="json")))
    return tenant


@router.get("/{tenant_id}", summary="Show a Tenant", responses=FIND_ERRORS)
async def get_tenant(tenant_id: PathId, gateway: GatewayParts, _key: Reader) -> Tenant:
    """One Tenant with its allowance."""
    async with gateway.store.reading() as work:
        return await work.tenants.get(tenant_id)


@router.patch("/{tenant_id}", summary="Change a Tenant", responses=WRITE_ERRORS)
async def change_tenant(tenant_id: PathId, body: TenantChange, gateway: GatewayParts, key: Writer) -> Tenant:
    """Only the fields that are sent change; an allowance is replaced as a whole.

    It holds here at once, and within seconds on other gateway processes.
    """
    changed = body.model_dump(mode="json", exclude_unset=True)
    async with gateway.store.transaction() as work:
        tenant = await work.tenants.get(tenant_id, lock=True)
        tenant = Tenant.model_validate(tenant.model_dump() | body.model_dump(exclude_unset=True))
        await work.tenants.update(tenant)
        await work.audit.add(audit_record(key, "tenant.change", tenant_id, changed))
    gateway.authenticator.forget_tenant(tenant_id)
    return tenant


@router.get("/{tenant_id}/usage", summary="Show what a Tenant used", responses=FIND_ERRORS)
async def show_usage(
    tenant_id: PathId,
    gateway: GatewayParts,
    _key: Reader,
    month: Annotated[str | None, Query(pattern=r"^[0-9]{4}-(0[1-9]|1[0-2])$", description="Such as 2026-11.")] = None,
) -> list[Usage]:
    """Requests, tokens and cost of every key by calendar month (UTC), newest month first.

    What was used in the last seconds may not be in it yet.
    """
    async with gateway.store.reading() as work:
        await work.tenants.get(tenant_id)
        return await work.usage.list(tenant_id, month)
