"""Deployments: which replicas there are and what they hold."""

from fastapi import APIRouter

from core.deployment import Deployment
from gateway.dependencies import READ_ERRORS, GatewayParts, Reader

router = APIRouter(prefix="/deployments", tags=["Deployments"])


@router.get("", summary="List Deployments", responses=READ_ERRORS)
async def list_deployments(gateway: GatewayParts, _key: Reader) -> list[Deployment]:
    """All replicas as the fleet last saw them, with the PolicyVersions loaded there and their probes."""
    async with gateway.store.reading() as work:
        return await work.deployments.list()
