"""Withdrawal of Episodes, erasure and export of Tenants, and their Tombstones."""

import tempfile
from pathlib import Path
from typing import Annotated

from fastapi import APIRouter, Query
from fastapi.responses import FileResponse
from starlette.background import BackgroundTask

from core.tombstone import Tombstone, Withdrawal
from gateway.audit import audit_record
from gateway.callers import PathId, QueryId
from gateway.dependencies import FIND_ERRORS, READ_ERRORS, WRITE_ERRORS, GatewayParts, Reader, Writer
from gateway.erasure.export import export_tenant
from gateway.registry.lineage import EpisodeVersion, versions_of

router = APIRouter(tags=["Privacy"])


@router.delete("/episodes/{episode_id}", summary="Withdraw an Episode", responses=WRITE_ERRORS)
async def withdraw(episode_id: PathId, gateway: GatewayParts, key: Writer) -> Tombstone:
    """Erase an Episode with all that came of it, and mark the versions that saw it."""
    tombstone = await gateway.erasure.withdraw(key, episode_id)
    gateway.episodes.ended(episode_id)
    return tombstone


@router.get("/episodes/{episode_id}/versions", summary="List the versions that saw an Episode", responses=FIND_ERRORS)
async def seen_by(episode_id: PathId, gateway: GatewayParts, _key: Reader) -> list[EpisodeVersion]:
    """Themselves or by descent; also of an Episode that was withdrawn."""
    async with gateway.store.reading() as work:
        return await versions_of(work, episode_id)


@router.delete("/tenants/{tenant_id}", summary="Erase a Tenant", responses=WRITE_ERRORS)
async def erase(
    tenant_id: PathId,
    gateway: GatewayParts,
    key: Writer,
    confirm: Annotated[str, Query(max_length=256, description="The Tenant's id once more.")],
) -> Tombstone:
    """Erase a Tenant, its keys and everything that is held about it; usage counters and audit records stay."""
    return await gateway.erasure.erase_tenant(key, tenant_id, confirm=confirm)


@router.get(
    "/tenants/{tenant_id}/export",
    summary="Export what is held about a Tenant",
    response_class=FileResponse,
    responses=FIND_ERRORS | {200: {"content": {"application/gzip": {}}, "description": "The archive."}},
)
async def export(tenant_id: PathId, gateway: GatewayParts, key: Writer) -> FileResponse:
    """A gzipped tar: one file of JSON lines for each table, and `manifest.json` with rows and sha256 of each."""
    folder = tempfile.TemporaryDirectory(prefix="hone-export-")
    target = Path(folder.name) / "export.tar.gz"
    try:
        await export_tenant(gateway.store, tenant_id, target)
        async with gateway.store.transaction() as work:
            await work.audit.add(audit_record(key, "tenant.export", tenant_id))
    except BaseException:
        folder.cleanup()
        raise
    return FileResponse(
        target,
        media_type="application/gzip",
        filename="export.tar.gz",
        background=BackgroundTask(folder.cleanup),
    )


@router.get("/withdrawals", summary="List withdrawn Episodes", responses=READ_ERRORS)
async def list_withdrawals(
    gateway: GatewayParts,
    _key: Reader,
    tenant_id: QueryId = None,
    after: Annotated[str, Query(max_length=256, pattern=r"^[\x21-\x7e]*$")] = "",
    limit: Annotated[int, Query(ge=1, le=1000)] = 1000,
) -> list[Withdrawal]:
    """A page in order of Episode id: what is to be left out of any training."""
    async with gateway.store.reading() as work:
        return await work.withdrawals.list(tenant_id=tenant_id, after=after, limit=limit)


@router.get("/tombstones", summary="List proofs of erasure", responses=READ_ERRORS)
async def list_tombstones(
    gateway: GatewayParts,
    _key: Reader,
    tenant_id: QueryId = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
) -> list[Tombstone]:
    """The newest first."""
    async with gateway.store.reading() as work:
        return await work.tombstones.list(tenant_id=tenant_id, limit=limit)
