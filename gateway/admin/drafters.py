"""Drafters: the draft models of the ``fast`` Variant, and asking the learner for another one."""

from typing import Annotated

from fastapi import APIRouter, Query

from core.distillation import DISTIL, DistilRequest
from core.drafter import Drafter, DrafterStatus
from core.errors import InvalidRequest, NotFound
from core.job import Job
from gateway.admin.schemas import NewDrafter
from gateway.audit import audit_record
from gateway.callers import QueryId
from gateway.dependencies import READ_ERRORS, WRITE_ERRORS, GatewayParts, Reader, Writer
from store.unit_of_work import UnitOfWork

router = APIRouter(prefix="/drafters", tags=["Drafters"])


@router.get("", summary="List Drafters", responses=READ_ERRORS)
async def list_drafters(
    gateway: GatewayParts,
    _key: Reader,
    base: QueryId = None,
    policy: QueryId = None,
    status: Annotated[list[DrafterStatus] | None, Query()] = None,
) -> list[Drafter]:
    """Drafters in order of Base and number, with what their training measured and how their trials went."""
    async with gateway.store.reading() as work:
        return await work.drafters.list(base, policy=policy, statuses=status)


@router.post("", summary="Distil a Drafter", status_code=202, responses=WRITE_ERRORS)
async def distil_drafter(body: NewDrafter, gateway: GatewayParts, key: Writer) -> Job:
    """Ask the learner for a draft model of a version; the job's result names it. The fleet then tries it."""
    async with gateway.store.reading() as work:
        request = await _request(work, body, gateway.config.base.name)
    job = await gateway.store.queue.enqueue(DISTIL, request.model_dump(mode="json"))
    async with gateway.store.transaction() as work:
        subject = request.policy or request.base
        await work.audit.add(audit_record(key, "drafter.distil", subject, {"job": job.id, **job.payload}))
    return job


async def _request(work: UnitOfWork, body: NewDrafter, configured_base: str) -> DistilRequest:
    base, version = body.base or configured_base, body.version or 0
    if body.policy is not None:
        policy = await work.policies.get(body.policy)
        if body.base is not None and body.base != policy.base:
            raise InvalidRequest(f"'{policy.name}' is trained on '{policy.base}'", param="base")
        base = policy.base
        version = policy.promoted_version if body.version is None else body.version
        await work.versions.get(policy.name, version)
    elif version:
        raise InvalidRequest("only a Policy has versions beside 0", param="version", hint="name the policy")
    if base not in {one.name for one in await work.bases.list()}:
        raise NotFound(f"there is no Base '{base}'", param="base")
    live = await work.drafters.list(base, statuses=[DrafterStatus.LIVE])
    return DistilRequest(
        base=base,
        policy=body.policy,
        target_version=version,
        after=live[0].id if live and body.warm_start else None,
        seed=body.seed,
        reason="asked for by hand",
    )
