"""Episodes: what was asked, answered and judged, and how the Trajectory hangs together."""

from collections import Counter
from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import Field

from core.episode import Episode, EpisodeStatus
from core.errors import NotFound
from core.prefix_use import prefix_use
from core.trajectory import NO_BREAKS, build_trajectory
from core.verdict import Reward
from gateway.admin.schemas import Body, BranchView, EpisodeView
from gateway.callers import PathId
from gateway.dependencies import FIND_ERRORS, READ_ERRORS, GatewayParts, Reader
from store.unit_of_work import UnitOfWork

router = APIRouter(prefix="/episodes", tags=["Episodes"])


class EpisodeFilter(Body):
    """Which Episodes to list."""

    policy: str | None = None
    domain: str | None = None
    purpose: str | None = None
    """`client`, `train`, `evaluate` or `shadow`."""
    status: EpisodeStatus | None = None
    tenant_id: str | None = None
    group_id: str | None = None
    limit: int = Field(default=100, ge=1, le=1000)
    """Most Episodes of one page."""
    before: str | None = None
    """Id of the last Episode of the page before."""


@router.get("", summary="List Episodes", responses=READ_ERRORS)
async def list_episodes(
    wanted: Annotated[EpisodeFilter, Query()], gateway: GatewayParts, _key: Reader
) -> list[Episode]:
    """A page of Episodes, newest first."""
    async with gateway.store.reading() as work:
        return await work.episodes.list(**wanted.model_dump())


@router.get("/{episode_id}", summary="Show an Episode", responses=FIND_ERRORS)
async def get_episode(episode_id: PathId, gateway: GatewayParts, _key: Reader) -> EpisodeView:
    """An Episode with its Turns, tool results, Verdicts, Reward, and the Branches of its Trajectory."""
    async with gateway.store.reading() as work:
        episode = await work.episodes.get(episode_id)
        turns = await work.turns.for_episode(episode_id)
        verdicts = await work.verdicts.for_episode(episode_id)
        reward = await _reward(work, episode_id)
        checkpoints = await work.lineage.checkpoints_of(episode_id)
    branches = build_trajectory(episode_id, turns).branches
    return EpisodeView(
        episode=episode,
        turns=turns,
        verdicts=verdicts,
        reward=reward,
        branches=[BranchView(turn_ids=[turn.id for turn in branch.turns], cause=branch.cause) for branch in branches],
        breaks=dict(Counter(branch.cause for branch in branches if branch.cause not in NO_BREAKS)),
        prefix=prefix_use(turns),
        checkpoints=checkpoints,
    )


async def _reward(work: UnitOfWork, episode_id: str) -> Reward | None:
    try:
        return await work.rewards.get(episode_id)
    except NotFound:
        return None
