"""TrainingRuns, step by step."""

from fastapi import APIRouter

from core.run import TrainingRun
from gateway.callers import PathId, QueryId
from gateway.dependencies import FIND_ERRORS, READ_ERRORS, GatewayParts, Reader

router = APIRouter(prefix="/runs", tags=["Runs"])


@router.get("", summary="List TrainingRuns", responses=READ_ERRORS)
async def list_runs(gateway: GatewayParts, _key: Reader, policy: QueryId = None) -> list[TrainingRun]:
    """Runs of all Policies, or of one, newest first."""
    async with gateway.store.reading() as work:
        return await work.runs.list(policy)


@router.get("/{run_id}", summary="Show a TrainingRun", responses=FIND_ERRORS)
async def get_run(run_id: PathId, gateway: GatewayParts, _key: Reader) -> TrainingRun:
    """A run with the metrics of every step."""
    async with gateway.store.reading() as work:
        return await work.runs.get(run_id)
