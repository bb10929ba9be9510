"""Policies, their versions, and which of them gets the traffic."""

from fastapi import APIRouter
from pydantic import ValidationError

from core.errors import Conflict, InvalidRequest, NotFound
from core.policy import Checkpoint, Policy, PolicyVersion
from core.release import Release
from gateway.admin.schemas import (
    CheckpointView,
    NewPolicy,
    PolicyView,
    Promotion,
    Rollback,
    TrafficView,
    VersionNumber,
    VersionView,
)
from gateway.audit import audit_record
from gateway.callers import PathId
from gateway.dependencies import FIND_ERRORS, READ_ERRORS, WRITE_ERRORS, GatewayParts, Reader, Writer
from gateway.release import TrafficMove, base_release, required_steps
from store.events import POLICIES
from store.unit_of_work import UnitOfWork

router = APIRouter(prefix="/policies", tags=["Policies"])


@router.get("", summary="List Policies", responses=READ_ERRORS)
async def list_policies(gateway: GatewayParts, _key: Reader) -> list[Policy]:
    """All Policies in order of name."""
    async with gateway.store.reading() as work:
        return await work.policies.list()


@router.post("", summary="Create a Policy", status_code=201, responses=WRITE_ERRORS)
async def create_policy(body: NewPolicy, gateway: GatewayParts, key: Writer) -> PolicyView:
    """A new line of training; its version 0 is the Base, live and promoted from the start."""
    try:
        policy = Policy(
            name=body.name, base=body.base or gateway.config.base.name, release_policy=body.release_policy
        )
    except ValidationError as error:
        raise InvalidRequest(error.errors()[0]["msg"].removeprefix("Value error, "), param="name") from error
    required_steps(policy)
    async with gateway.store.transaction() as work:
        bases = {base.name for base in await work.bases.list()}
        if policy.base not in bases:
            raise NotFound(f"there is no Base '{policy.base}'", param="base")
        if policy.name in bases:
            raise Conflict(f"'{policy.name}' is the name of a Base", param="name")
        await work.policies.add(policy)
        await work.releases.add(base_release(policy.name))
        await work.audit.add(audit_record(key, "policy.create", policy.name, body.model_dump(mode="json")))
        view = await _policy_view(work, policy)
    await gateway.store.events.publish(POLICIES, {"policy": policy.name})
    return view


@router.get("/{name}", summary="Show a Policy", responses=FIND_ERRORS)
async def get_policy(name: PathId, gateway: GatewayParts, _key: Reader) -> PolicyView:
    """A Policy with its versions and their Releases."""
    async with gateway.store.reading() as work:
        return await _policy_view(work, await work.policies.get(name))


@router.get("/{name}/versions", summary="List the versions of a Policy", responses=FIND_ERRORS)
async def list_versions(name: PathId, gateway: GatewayParts, _key: Reader) -> list[PolicyVersion]:
    """All versions in ascending order, from 0 (the Base) on."""
    async with gateway.store.reading() as work:
        await work.policies.get(name)
        return await _versions(work, name)


@router.get("/{name}/versions/{number}", summary="Show a PolicyVersion", responses=FIND_ERRORS)
async def get_version(name: PathId, number: VersionNumber, gateway: GatewayParts, _key: Reader) -> VersionView:
    """A version with its Checkpoint's provenance, its Release, its Evaluations, and where it is loaded."""
    async with gateway.store.reading() as work:
        policy = await work.policies.get(name)
        version = await work.versions.get(name, number)
        deployments = [
            deployment.id
            for deployment in await work.deployments.list()
            if deployment.base == policy.base and (number == 0 or deployment.holding(name, number) is not None)
        ]
        return VersionView(
            version=version,
            checkpoint=await _checkpoint_view(work, version),
            release=await _release(work, name, number),
            evaluations=await work.evaluations.list(name, number),
            deployments=deployments,
        )


@router.post("/{name}/promote", summary="Promote a PolicyVersion", responses=WRITE_ERRORS)
async def promote(name: PathId, body: Promotion, gateway: GatewayParts, key: Writer) -> TrafficView:
    """Give the Policy's traffic to a version; 409 names the evidence that its release policy misses."""
    move = await gateway.releases.promote(
        key, name, body.version, skip=body.skip, reason=body.reason, expected=body.expected_promoted
    )
    await gateway.routing.refresh()
    return _traffic_view(move)


@router.post("/{name}/rollback", summary="Roll a Policy back", responses=WRITE_ERRORS)
async def roll_back(name: PathId, gateway: GatewayParts, key: Writer, body: Rollback | None = None) -> TrafficView:
    """Give the traffic back to the version that was promoted before."""
    move = await gateway.releases.rollback(key, name, reason=None if body is None else body.reason)
    await gateway.routing.refresh()
    return _traffic_view(move)


async def _policy_view(work: UnitOfWork, policy: Policy) -> PolicyView:
    return PolicyView(
        policy=policy,
        versions=await _versions(work, policy.name),
        releases=await work.releases.list(policy.name),
    )


async def _versions(work: UnitOfWork, policy: str) -> list[PolicyVersion]:
    # The Base's version has no row of its own.
    return [await work.versions.get(policy, 0), *await work.versions.list(policy)]


async def _checkpoint_view(work: UnitOfWork, version: PolicyVersion) -> CheckpointView | None:
    if version.checkpoint_id is None:
        return None
    try:
        found: Checkpoint = await work.checkpoints.get(version.checkpoint_id)
    except NotFound:
        return None
    return CheckpointView(
        id=found.id,
        kind=found.kind,
        path=found.path,
        checksum=found.checksum,
        base_fingerprint=found.base_fingerprint,
        lora_rank=found.lora_rank,
        probe_prompts=len(found.probe.prompts),
        provenance=found.provenance,
        created_at=found.created_at,
    )


async def _release(work: UnitOfWork, policy: str, number: int) -> Release | None:
    try:
        return await work.releases.get(policy, number)
    except NotFound:
        return None


def _traffic_view(move: TrafficMove) -> TrafficView:
    return TrafficView(policy=move.policy, promoted=move.promoted, displaced=move.displaced)
