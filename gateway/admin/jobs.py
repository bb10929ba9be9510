"""The job queue, and the dead letter's way back."""

from typing import Annotated

from fastapi import APIRouter, Query

from core.job import Job
from gateway.admin.schemas import JobsView
from gateway.audit import audit_record
from gateway.callers import PathId
from gateway.dependencies import FIND_ERRORS, READ_ERRORS, WRITE_ERRORS, GatewayParts, Reader, Writer

router = APIRouter(prefix="/jobs", tags=["Jobs"])


@router.get("", summary="Show the queue", responses=READ_ERRORS)
async def show_queue(
    gateway: GatewayParts, _key: Reader, limit: Annotated[int, Query(ge=1, le=1000)] = 100
) -> JobsView:
    """How many jobs there are by status, and the dead ones with their errors."""
    return JobsView(depth=await gateway.store.queue.depth(), dead=await gateway.store.queue.dead(limit))


@router.get("/{job_id}", summary="Show a job", responses=FIND_ERRORS)
async def get_job(job_id: PathId, gateway: GatewayParts, _key: Reader) -> Job:
    """One job with its payload, its result or its last error."""
    return await gateway.store.queue.get(job_id)


@router.post("/{job_id}/requeue", summary="Requeue a dead job", responses=WRITE_ERRORS)
async def requeue_job(job_id: PathId, gateway: GatewayParts, key: Writer) -> Job:
    """Give a dead job a fresh set of attempts."""
    job = await gateway.store.queue.requeue(job_id)
    async with gateway.store.transaction() as work:
        await work.audit.add(audit_record(key, "job.requeue", job_id, {"kind": job.kind}))
    return job
