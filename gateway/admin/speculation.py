"""Speculation: how draft tokens fare by version and Domain, and whether fast replicas answer as standard ones."""

from typing import Annotated

from fastapi import APIRouter, Query

from core.noun import Noun, now
from core.sameness import SamenessCheck
from core.speculation import SpeculationRow, speculation_rows
from gateway.callers import QueryId
from gateway.dependencies import READ_ERRORS, GatewayParts, Reader

router = APIRouter(prefix="/speculation", tags=["Deployments"])

_HOUR = 3600.0


class SpeculationReport(Noun):
    """What recorded Turns of a span of time say."""

    since: float
    """Unix seconds; Turns of Episodes that began later are counted."""
    rows: list[SpeculationRow]


@router.get("", summary="Speculation report", responses=READ_ERRORS)
async def speculation_report(
    gateway: GatewayParts,
    _key: Reader,
    hours: Annotated[float, Query(gt=0, le=24 * 366)] = 24.0,
    policy: QueryId = None,
) -> SpeculationReport:
    """Acceptance by position, tokens per step, and speed of fast against standard, by Policy version and Domain."""
    since = now() - hours * _HOUR
    async with gateway.store.reading() as work:
        figures = await work.speculated.figures(since=since, policy=policy)
    return SpeculationReport(since=since, rows=speculation_rows(figures))


@router.get("/sameness", summary="Comparisons of fast with standard replicas", responses=READ_ERRORS)
async def sameness_checks(
    gateway: GatewayParts,
    _key: Reader,
    base: QueryId = None,
    deployment: QueryId = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
) -> list[SamenessCheck]:
    """The newest comparisons first; ``deployment`` is the fast replica that was judged."""
    async with gateway.store.reading() as work:
        return await work.sameness.list(base=base, fast_id=deployment, limit=limit)
