"""What a supervisor asks a process: is it alive, is it ready, what does it count."""

from fastapi import APIRouter
from fastapi.responses import JSONResponse, Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from core.deployment import DeploymentStatus
from core.errors import EngineUnavailable
from gateway.dependencies import GatewayParts
from gateway.openai_api.documents import Health

router = APIRouter(tags=["Probes"])


@router.get("/health", summary="Is the process alive?")
async def health() -> Health:
    """Answers as long as the process runs."""
    return Health(status="ok")


@router.get(
    "/ready",
    summary="Can requests be answered?",
    response_model=Health,
    responses={503: {"model": Health, "description": "Not yet, or not at present."}},
)
async def ready(gateway: GatewayParts) -> JSONResponse:
    """200 once the routing table was read and a replica is ready."""
    try:
        deployments = gateway.routing.table.deployments
    except EngineUnavailable as error:
        return JSONResponse(Health(status="starting", reason=error.message).model_dump(), 503)
    if not any(deployment.status is DeploymentStatus.READY for deployment in deployments):
        return JSONResponse(Health(status="waiting", reason="no replica is ready").model_dump(), 503)
    return JSONResponse(Health(status="ready").model_dump())


@router.get(
    "/metrics",
    summary="Prometheus metrics",
    response_class=Response,
    responses={200: {"content": {"text/plain": {}}, "description": "Metrics in Prometheus' text format."}},
)
async def metrics(gateway: GatewayParts) -> Response:
    """Every metric of this process, or of all that share its port, told apart by `gateway_process`."""
    registry = gateway.metrics.registry
    text = generate_latest(registry) if gateway.siblings is None else await gateway.siblings.text()
    return Response(text, headers={"content-type": CONTENT_TYPE_LATEST})
