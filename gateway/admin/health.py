"""The installation at a glance."""

from collections import defaultdict

import structlog
from fastapi import APIRouter

from core.deployment import Deployment, DeploymentStatus
from core.errors import EngineUnavailable
from core.policy import ServingStatus
from gateway.admin.schemas import PartHealth, RecorderHealth, SystemHealth
from gateway.dependencies import GatewayParts, Reader, errors
from gateway.routing import Routing
from gateway.state import Gateway

log = structlog.get_logger(__name__)

router = APIRouter(prefix="/health", tags=["Health"])

_STALE_ROUTING_SECONDS = 30.0


@router.get("", summary="Show the installation's health", responses=errors(401, 403, 503))
async def show_health(gateway: GatewayParts, _key: Reader) -> SystemHealth:
    """Database, routing, recorder and replicas, as this gateway sees them; also while some of them are down."""
    database = await _database(gateway)
    routing = _routing(gateway.routing)
    recorder = RecorderHealth(
        ok=gateway.recorder.last_error is None,
        buffered=gateway.recorder.buffered,
        buffered_bytes=gateway.recorder.buffered_bytes,
        capacity=gateway.recorder.capacity,
        lost=gateway.recorder.lost,
        last_error=gateway.recorder.last_error,
    )
    deployments, serving = _served(gateway.routing)
    ready = any(deployment.status is DeploymentStatus.READY for deployment in deployments)
    return SystemHealth(
        ok=database.ok and routing.ok and recorder.ok and ready,
        database=database,
        routing=routing,
        recorder=recorder,
        deployments=deployments,
        serving=serving,
    )


async def _database(gateway: Gateway) -> PartHealth:
    try:
        async with gateway.store.reading() as work:
            await work.bases.list()
    except Exception as error:  # noqa: BLE001 - whatever it is, this page reports it
        log.warning("health_database", error=repr(error))
        return PartHealth(ok=False, detail=f"{type(error).__name__}: {error}")
    return PartHealth(ok=True, detail="answers")


def _routing(routing: Routing) -> PartHealth:
    age = routing.age_seconds
    if age is None:
        return PartHealth(ok=False, detail="not read yet")
    return PartHealth(ok=age < _STALE_ROUTING_SECONDS, detail=f"read {age:.1f} s ago")


def _served(routing: Routing) -> tuple[list[Deployment], dict[str, list[int]]]:
    try:
        table = routing.table
    except EngineUnavailable:
        return [], {}
    serving: defaultdict[str, list[int]] = defaultdict(list)
    for (policy, number), version in sorted(table.versions.items()):
        if version.serving is ServingStatus.LIVE:
            serving[policy].append(number)
    return list(table.deployments), {name: [0, *serving[name]] for name in sorted(table.policies)}
