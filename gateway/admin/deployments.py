"""Deployments: which replicas there are, what they hold and how they are, and their restart."""

from fastapi import APIRouter

from core.deployment import Deployment, DeploymentStatus, Restart
from core.errors import Conflict
from gateway.admin.schemas import RestartRequest
from gateway.audit import audit_record
from gateway.callers import PathId
from gateway.dependencies import FIND_ERRORS, READ_ERRORS, WRITE_ERRORS, GatewayParts, Reader, Writer
from store.events import DEPLOYMENTS

router = APIRouter(prefix="/deployments", tags=["Deployments"])


@router.get("", summary="List Deployments", responses=READ_ERRORS)
async def list_deployments(gateway: GatewayParts, _key: Reader) -> list[Deployment]:
    """All replicas as the fleet last asked them: the versions that they hold and list themselves, load, swaps.

    `heartbeat_at` says when that was; `load` and `speculation_seen` carry times of their own.
    """
    async with gateway.store.reading() as work:
        return await work.deployments.list()


@router.get("/{deployment_id}", summary="Show a Deployment", responses=FIND_ERRORS)
async def get_deployment(deployment_id: PathId, gateway: GatewayParts, _key: Reader) -> Deployment:
    """One replica, as in the list."""
    async with gateway.store.reading() as work:
        return await work.deployments.get(deployment_id)


@router.post("/{deployment_id}/restart", summary="Restart an engine", status_code=202, responses=WRITE_ERRORS)
async def restart_deployment(
    deployment_id: PathId, gateway: GatewayParts, key: Writer, body: RestartRequest | None = None
) -> Deployment:
    """Have an engine drained and started anew, when its turn comes and other replicas can answer meanwhile.

    The leading fleet does it; `restart` of the Deployment stays until the engine serves again.
    """
    wish = Restart(reason=(body or RestartRequest()).reason)
    async with gateway.store.transaction() as work:
        deployment = await work.deployments.get(deployment_id, lock=True)
        if deployment.machine is None:
            raise Conflict(f"{deployment.url} is not run by the fleet", hint="restart it where it runs")
        if deployment.status is DeploymentStatus.STOPPED:
            raise Conflict(f"{deployment.url} is stopped: its fleet does not run", hint="start 'hone fleet'")
        if deployment.restart is None:
            deployment = deployment.model_copy(update={"restart": wish})
            await work.deployments.put(deployment)
        await work.audit.add(audit_record(key, "deployment.restart", deployment_id, {"reason": wish.reason}))
    await gateway.store.events.publish(DEPLOYMENTS, {"deployment": deployment_id})
    return deployment
