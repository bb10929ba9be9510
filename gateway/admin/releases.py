"""Releases: candidates on their way to traffic, what was decided about them, and the page of each decision.

``name`` in a path is the id of a release, or ``coder`` or ``coder@3`` for the newest one.
"""

from typing import Annotated, Any

from fastapi import APIRouter, Query
from fastapi.responses import HTMLResponse, Response
from pydantic import Field

from core.release import ReleaseStep
from core.release_plan import ReleasePlan
from core.release_run import ReleaseDecision, ReleaseRun
from gateway.admin.schemas import Body, VersionNumber
from gateway.callers import PathId, QueryId
from gateway.dependencies import FIND_ERRORS, READ_ERRORS, WRITE_ERRORS, GatewayParts, Reader, Writer
from gateway.release_run.page import DecisionView, decision_page, decision_view
from gateway.release_run.run_desk import RunDesk

router = APIRouter(prefix="/releases", tags=["Releases"])

DecisionNumber = Annotated[int | None, Query(ge=1, le=1_000_000, description="Default: the newest.")]
_PAGE: dict[int | str, dict[str, Any]] = {
    200: {"description": "The page.", "content": {"text/html": {"schema": {"type": "string"}}}},
    **FIND_ERRORS,
}
_PAGE_HEADERS = {
    "content-security-policy": "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
}


class NewRelease(Body):
    """A candidate to be released by a plan."""

    version: VersionNumber
    plan: ReleasePlan
    """As in a policy file; its Policy is the one that is released."""
    reason: str | None = Field(default=None, max_length=1000)
    """Why a version that was rolled back is tried again; needed only there."""


class Approval(Body):
    """A person's consent to go on."""

    reason: str | None = None


class SkippedStep(Body):
    """A step that is passed without its evidence."""

    step: ReleaseStep
    reason: str
    """Stands in the evidence for good."""


class StopReason(Body):
    """Why a release ends."""

    reason: str


class RunSummary(Body):
    """A release in a list: its newest decision instead of all evidence."""

    id: str
    policy: str
    version: int
    baseline: int
    status: str
    step: str | None
    waits: list[str]
    started_at: float
    ended_at: float | None
    newest: ReleaseDecision


@router.get("", summary="List releases", responses=READ_ERRORS)
async def list_releases(
    gateway: GatewayParts,
    _key: Reader,
    policy: QueryId = None,
    limit: Annotated[int, Query(ge=1, le=500)] = 50,
) -> list[RunSummary]:
    """Releases (of a Policy), the newest first."""
    async with gateway.store.reading() as work:
        return [_summary(run) for run in await work.release_runs.list(policy, limit=limit)]


@router.post("", summary="Start a release", status_code=201, responses=WRITE_ERRORS)
async def start_release(body: NewRelease, gateway: GatewayParts, key: Writer) -> ReleaseRun:
    """Take a version by a plan: evaluation, shadow, ramp, promotion; one release of a Policy at a time."""
    return await RunDesk(store=gateway.store).start(key, body.plan, body.version, reason=body.reason)


@router.get("/{name}", summary="Show a release", responses=FIND_ERRORS)
async def get_release(name: PathId, gateway: GatewayParts, _key: Reader) -> ReleaseRun:
    """All of a release: its plan, where it stands, and every decision with its evidence."""
    return await RunDesk(store=gateway.store).find(name)


@router.get("/{name}/decision", summary="Show a decision", responses=FIND_ERRORS)
async def get_decision(
    name: PathId, gateway: GatewayParts, _key: Reader, decision: DecisionNumber = None
) -> DecisionView:
    """What was compared, the numbers and intervals, and the verdict."""
    return decision_view(await RunDesk(store=gateway.store).find(name), decision)


@router.get("/{name}/page", summary="Show a decision as a page", response_class=Response, responses=_PAGE)
async def get_page(
    name: PathId, gateway: GatewayParts, _key: Reader, decision: DecisionNumber = None
) -> HTMLResponse:
    """The same as one self-contained HTML document with pictures."""
    run = await RunDesk(store=gateway.store).find(name)
    return HTMLResponse(decision_page(run, decision), headers=_PAGE_HEADERS)


@router.post("/{name}/approve", summary="Approve a step", responses=WRITE_ERRORS)
async def approve_release(
    name: PathId, gateway: GatewayParts, key: Writer, body: Approval | None = None
) -> ReleaseRun:
    """Let a release that waits for it go on."""
    desk = RunDesk(store=gateway.store)
    return await desk.approve(key, (await desk.find(name)).id, None if body is None else body.reason)


@router.post("/{name}/skip", summary="Skip a step", responses=WRITE_ERRORS)
async def skip_step(name: PathId, body: SkippedStep, gateway: GatewayParts, key: Writer) -> ReleaseRun:
    """Pass a step without its evidence, which is recorded as missing."""
    desk = RunDesk(store=gateway.store)
    return await desk.skip(key, (await desk.find(name)).id, body.step, body.reason)


@router.post("/{name}/stop", summary="Stop a release", responses=WRITE_ERRORS)
async def stop_release(name: PathId, body: StopReason, gateway: GatewayParts, key: Writer) -> ReleaseRun:
    """End a release; a ramp under way is taken back at once."""
    desk = RunDesk(store=gateway.store)
    return await desk.stop(key, (await desk.find(name)).id, body.reason)


def _summary(run: ReleaseRun) -> RunSummary:
    return RunSummary(
        id=run.id,
        policy=run.policy,
        version=run.version,
        baseline=run.baseline,
        status=run.status,
        step=run.step,
        waits=list(run.waits),
        started_at=run.started_at,
        ended_at=run.ended_at,
        newest=run.decisions[-1],
    )
