"""TrainingRuns, step by step."""

from fastapi import APIRouter

from core.errors import NotFound
from core.noun import Noun
from core.run import TrainingRun
from gateway.callers import PathId, QueryId
from gateway.dependencies import FIND_ERRORS, READ_ERRORS, GatewayParts, Reader

router = APIRouter(prefix="/runs", tags=["Runs"])


class StepLineage(Noun):
    """Which Episodes one version of a run was trained on."""

    step: int
    version: int
    checkpoint_id: str
    episode_ids: tuple[str, ...]


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


@router.get("/{run_id}/lineage", summary="List what a run was trained on", responses=FIND_ERRORS)
async def get_lineage(run_id: PathId, gateway: GatewayParts, _key: Reader) -> list[StepLineage]:
    """Of each version that the run published and that is still kept: its Checkpoint and the Episodes it saw."""
    found = []
    async with gateway.store.reading() as work:
        run = await work.runs.get(run_id)
        published = {step.version: step.step for step in reversed(run.steps) if step.version != run.start_version}
        for version, step in sorted(published.items()):
            try:
                checkpoint = await work.checkpoints.for_version(run.policy, version)
            except NotFound:
                continue
            episodes = await work.lineage.episodes_of(checkpoint.id)
            found.append(
                StepLineage(step=step, version=version, checkpoint_id=checkpoint.id, episode_ids=tuple(episodes))
            )
    return found
