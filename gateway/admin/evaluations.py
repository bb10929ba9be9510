"""Evaluations: versions against baselines."""

from fastapi import APIRouter

from core.evaluation import Evaluation
from gateway.admin.schemas import VersionNumber
from gateway.callers import QueryId
from gateway.dependencies import READ_ERRORS, GatewayParts, Reader

router = APIRouter(prefix="/evaluations", tags=["Evaluations"])


@router.get("", summary="List Evaluations", responses=READ_ERRORS)
async def list_evaluations(
    gateway: GatewayParts, _key: Reader, policy: QueryId = None, version: VersionNumber | None = None
) -> list[Evaluation]:
    """Evaluations of one Policy, or of all, oldest first."""
    async with gateway.store.reading() as work:
        names = [policy] if policy is not None else [found.name for found in await work.policies.list()]
        return [found for name in names for found in await work.evaluations.list(name, version)]
