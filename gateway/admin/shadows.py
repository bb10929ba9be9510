"""Shadows: begin, list, report, stop."""

import secrets
from typing import Annotated, Literal

from fastapi import APIRouter, Query
from pydantic import Field

from core import ids
from core.experiment import Arm, Experiment
from core.guardrails import Guardrails
from core.shadow_report import ShadowReport
from core.variant import Variant
from gateway.admin.schemas import Body, VersionNumber
from gateway.callers import PathId, QueryId
from gateway.dependencies import FIND_ERRORS, READ_ERRORS, WRITE_ERRORS, GatewayParts, Reader, Writer

router = APIRouter(prefix="/shadows", tags=["Shadows"])

PRIMARY, CANDIDATE = "primary", "candidate"
_Status = Annotated[Literal["running", "stopped"] | None, Query()]
_Alpha = Annotated[float, Query(ge=1e-6, lt=0.5)]


class NewShadow(Body):
    """What is mirrored to whom, and how much of it."""

    policy: str
    candidate_version: VersionNumber | None = None
    """The version that answers unseen; left out: the promoted one, for a shadow of a Variant."""
    candidate_variant: Variant = Variant.STANDARD
    """`fast` compares the Variants, where no candidate version is named."""
    sample_share: float = Field(default=0.1, gt=0, le=1)
    """Of the requests that may be mirrored."""
    max_requests: int | None = Field(default=1000, ge=1, le=2**31 - 1)
    """Most requests that are mirrored; null: any number."""
    max_tokens: int | None = Field(default=None, ge=1, le=2**53)
    """Most tokens that the candidate samples, beyond which no further request is mirrored."""
    guardrails: Guardrails = Guardrails()
    """Its `slow_seconds`, `long_tokens` and `least_acceptance` say what counts as a bad event."""


class StopShadow(Body):
    """Why a shadow ends."""

    reason: str = Field(min_length=1, max_length=1000)


class ShadowReportView(Body):
    """A shadow and what its pairs say so far."""

    experiment: Experiment
    report: ShadowReport


@router.get("", summary="List shadows", responses=READ_ERRORS)
async def list_shadows(
    gateway: GatewayParts, _key: Reader, policy: QueryId = None, status: _Status = None
) -> list[Experiment]:
    """Shadows (of one Policy, with one status), oldest first."""
    async with gateway.store.reading() as work:
        return [one for one in await work.experiments.list(policy, status) if one.kind == "shadow"]


@router.post("", summary="Begin a shadow", status_code=201, responses=WRITE_ERRORS)
async def begin_shadow(body: NewShadow, gateway: GatewayParts, key: Writer) -> Experiment:
    """Mirror a sample of a Policy's requests to a candidate that no client sees; every gateway follows within a
    second."""
    async with gateway.store.reading() as work:
        promoted = (await work.policies.get(body.policy)).promoted_version
    version = promoted if body.candidate_version is None else body.candidate_version
    experiment = Experiment(
        id=ids.new_id(ids.EXPERIMENT),
        policy=body.policy,
        kind="shadow",
        arms=(
            Arm(name=PRIMARY, version=promoted, share=1.0),
            Arm(name=CANDIDATE, version=version, variant=body.candidate_variant, share=0.0),
        ),
        salt=secrets.token_hex(8),
        sample_share=body.sample_share,
        max_requests=body.max_requests,
        max_tokens=body.max_tokens,
        guardrails=body.guardrails,
    )
    began = await gateway.shadow.desk.begin(key, experiment)
    await gateway.experiments.live.refresh()
    return began


@router.get("/{experiment_id}", summary="Show a shadow", responses=FIND_ERRORS)
async def get_shadow(experiment_id: PathId, gateway: GatewayParts, _key: Reader) -> Experiment:
    """One shadow."""
    return await gateway.shadow.desk.get(experiment_id)


@router.get("/{experiment_id}/report", summary="Report on a shadow", responses=FIND_ERRORS)
async def report_shadow(
    experiment_id: PathId, gateway: GatewayParts, _key: Reader, alpha: _Alpha = 0.05
) -> ShadowReportView:
    """Paired differences by Domain with intervals that hold at every look, what was left out and why, and speed and
    length of both sides."""
    experiment, report = await gateway.shadow.desk.report(experiment_id, alpha=alpha)
    return ShadowReportView(experiment=experiment, report=report)


@router.post("/{experiment_id}/stop", summary="Stop a shadow", responses=WRITE_ERRORS)
async def stop_shadow(experiment_id: PathId, body: StopShadow, gateway: GatewayParts, key: Writer) -> Experiment:
    """Mirror no more; answers under way still count."""
    stopped = await gateway.shadow.desk.stop(key, experiment_id, body.reason)
    await gateway.experiments.live.refresh()
    return stopped
