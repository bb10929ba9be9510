"""A/B Experiments: begin, show, report, give the candidate more, stop."""

import secrets
from typing import Annotated, Literal

from fastapi import APIRouter, Query
from pydantic import Field, ValidationError

from core import ids
from core.errors import InvalidRequest
from core.experiment import Arm, Experiment
from core.guardrails import Guardrails
from core.noun import now
from core.ramp import CANDIDATE, PROMOTED, RampEvidence, speaks_against
from core.variant import Variant
from gateway.admin.schemas import Body, VersionNumber
from gateway.callers import PathId, QueryId
from gateway.dependencies import FIND_ERRORS, READ_ERRORS, WRITE_ERRORS, GatewayParts, Reader, Writer

router = APIRouter(prefix="/experiments", tags=["Experiments"])

_Status = Annotated[Literal["running", "stopped"] | None, Query()]


class NewExperiment(Body):
    """What to compare: two versions of a Policy, or its two Variants."""

    policy: str
    candidate_version: VersionNumber | None = None
    """The version to try; left out: the promoted one, for a comparison of Variants."""
    candidate_variant: Variant = Variant.STANDARD
    """`fast` compares the Variants, where no candidate version is named."""
    share: float = Field(default=0.01, gt=0, le=1)
    """Of the keys that get the candidate at first; all of them (1) only where Variants are compared."""
    key: Literal["user", "episode", "api_key"] = "episode"
    """What sticks to an arm: the end user that a request names, the conversation, or the API key."""
    guardrails: Guardrails = Guardrails()
    notify_url: str | None = Field(default=None, max_length=2000, pattern=r"^https?://")
    """Hears of an end by a guardrail, beside the configured webhook."""
    reason: str | None = Field(default=None, max_length=1000)
    """Why a candidate without what its release policy requires before a ramp may have traffic all the same."""


class NewShare(Body):
    """How far a ramp shall be."""

    share: float = Field(gt=0, le=1)
    """Of the keys; larger than before."""


class Stop(Body):
    """Why an Experiment ends."""

    reason: str = Field(min_length=1, max_length=1000)


class ExperimentView(Body):
    """An Experiment with the number of Episodes in each arm."""

    experiment: Experiment
    episodes: dict[str, int]
    """Arm → Episodes; those that saw two arms stand under `mixed`."""


class ExperimentReport(Body):
    """What an Experiment's outcomes say so far."""

    experiment: Experiment
    evidence: RampEvidence
    against: tuple[str, ...]
    """What would end it at once; empty: nothing."""


@router.get("", summary="List Experiments", responses=READ_ERRORS)
async def list_experiments(
    gateway: GatewayParts, _key: Reader, policy: QueryId = None, status: _Status = None
) -> list[Experiment]:
    """Shadows and A/B Experiments (of one Policy, with one status), oldest first."""
    async with gateway.store.reading() as work:
        return await work.experiments.list(policy, status)


@router.post("", summary="Begin an A/B Experiment", status_code=201, responses=WRITE_ERRORS)
async def begin_experiment(body: NewExperiment, gateway: GatewayParts, key: Writer) -> Experiment:
    """Split a Policy's traffic; every gateway follows within a second."""
    async with gateway.store.reading() as work:
        promoted = (await work.policies.get(body.policy)).promoted_version
    try:
        experiment = Experiment(
            id=ids.new_id(ids.EXPERIMENT),
            policy=body.policy,
            kind="ab",
            arms=(
                Arm(name=PROMOTED, version=promoted, share=1.0 - body.share),
                Arm(
                    name=CANDIDATE,
                    version=promoted if body.candidate_version is None else body.candidate_version,
                    variant=body.candidate_variant,
                    share=body.share,
                ),
            ),
            salt=secrets.token_hex(8),
            key=body.key,
            guardrails=body.guardrails,
            notify_url=body.notify_url,
            stage_since=now(),
        )
    except ValidationError as error:
        raise InvalidRequest(error.errors()[0]["msg"].removeprefix("Value error, ")) from error
    began = await gateway.experiments.desk.begin(key, experiment, reason=body.reason)
    await gateway.experiments.live.refresh()
    return began


@router.get("/{experiment_id}", summary="Show an Experiment", responses=FIND_ERRORS)
async def get_experiment(experiment_id: PathId, gateway: GatewayParts, _key: Reader) -> ExperimentView:
    """One Experiment and how many Episodes each arm has had."""
    async with gateway.store.reading() as work:
        experiment = await work.experiments.get(experiment_id)
        return ExperimentView(experiment=experiment, episodes=await work.arm_outcomes.counts(experiment_id))


@router.get("/{experiment_id}/report", summary="Report on an Experiment", responses=FIND_ERRORS)
async def report_experiment(experiment_id: PathId, gateway: GatewayParts, _key: Reader) -> ExperimentReport:
    """Sample ratio, guardrails, primary metric and the Episodes that saw two arms; valid at every look."""
    experiment, evidence = await gateway.experiments.desk.evidence(experiment_id)
    return ExperimentReport(experiment=experiment, evidence=evidence, against=speaks_against(evidence))


@router.post("/{experiment_id}/share", summary="Give the candidate more traffic", responses=WRITE_ERRORS)
async def move_on(experiment_id: PathId, body: NewShare, gateway: GatewayParts, key: Writer) -> Experiment:
    """Move a ramp one stage on; every key that has the candidate keeps it."""
    moved = await gateway.experiments.desk.move_on(key, experiment_id, body.share)
    await gateway.experiments.live.refresh()
    return moved


@router.post("/{experiment_id}/stop", summary="Stop an Experiment", responses=WRITE_ERRORS)
async def stop_experiment(experiment_id: PathId, body: Stop, gateway: GatewayParts, key: Writer) -> Experiment:
    """Route everything back to the promoted version; conversations in flight end on the version they began with."""
    stopped = await gateway.experiments.desk.stop(key, experiment_id, body.reason)
    await gateway.experiments.live.refresh()
    return stopped
