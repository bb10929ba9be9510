"""What administrators did."""

from typing import Annotated

from fastapi import APIRouter, Query

from core.access import AuditRecord
from gateway.dependencies import READ_ERRORS, GatewayParts, Reader

router = APIRouter(prefix="/audit", tags=["Audit"])


@router.get("", summary="List AuditRecords", responses=READ_ERRORS)
async def list_audit_records(
    gateway: GatewayParts, _key: Reader, limit: Annotated[int, Query(ge=1, le=1000)] = 100
) -> list[AuditRecord]:
    """The newest administrative writes, newest first."""
    async with gateway.store.reading() as work:
        return await work.audit.list(limit)
