"""``/v1/models``: every name that the ``model`` field may carry now."""

from collections.abc import Iterator

from fastapi import APIRouter, Depends

from core.deployment import DeploymentStatus
from core.errors import ModelNotFound
from core.policy import Policy, ServingStatus
from core.variant import ModelName, Variant
from gateway.callers import InferenceCaller
from gateway.dependencies import BEARER, GatewayParts, errors
from gateway.openai_api.documents import ModelCard, ModelList
from serving.pool import RoutingTable

router = APIRouter(prefix="/v1", tags=["OpenAI API"], dependencies=[Depends(BEARER)])


@router.get(
    "/models",
    summary="List models",
    responses=errors(401, 403, 503),
)
async def list_models(gateway: GatewayParts, caller: InferenceCaller) -> ModelList:
    """Bases, Policies, their `-fast` and `-auto` names where a fast replica is ready, and every live version.

    Only what Tenant and key allow.
    """
    return ModelList(data=[card for card in model_cards(gateway.routing.table) if caller.may_use(card.id)])


@router.get(
    "/models/{name:path}",
    summary="Show one model",
    responses=errors(401, 403, 404, 503),
)
async def get_model(name: str, gateway: GatewayParts, caller: InferenceCaller) -> ModelCard:
    """One of the names that `/v1/models` lists."""
    for card in model_cards(gateway.routing.table):
        if card.id == name and caller.may_use(name):
            return card
    raise ModelNotFound(f"the model '{name}' does not exist", param="model")


def model_cards(table: RoutingTable) -> Iterator[ModelCard]:
    """The cards of a routing table, in order of name."""
    fast_bases = {
        deployment.base
        for deployment in table.deployments
        if deployment.variant is Variant.FAST and deployment.status is DeploymentStatus.READY
    }
    for name in sorted(table.bases):
        if name not in table.policies:
            yield from _variants(ModelName(name=name, variant=Variant.STANDARD), name, None, fast_bases)
    for name in sorted(table.policies):
        policy = table.policies[name]
        yield from _variants(ModelName(name=name, variant=Variant.STANDARD), policy.base, policy, fast_bases)
        for number in _live_versions(table, name):
            pinned = ModelName(name=name, variant=Variant.STANDARD, version=number)
            yield from _variants(pinned, policy.base, policy, fast_bases)


def _variants(model: ModelName, base: str, policy: Policy | None, fast_bases: set[str]) -> Iterator[ModelCard]:
    kinds: list[dict[str, object]] = [{}]
    if base in fast_bases:
        kinds += [{"variant": Variant.FAST}, {"auto": True}]
    for kind in kinds:
        version = model.version
        if version is None and policy is not None:
            version = policy.promoted_version
        yield ModelCard(
            id=str(named := model.model_copy(update=kind)),
            created=0 if policy is None else int(policy.created_at),
            root=base,
            policy=None if policy is None else policy.name,
            version=version,
            variant="auto" if named.auto else named.variant.value,
        )


def _live_versions(table: RoutingTable, policy: str) -> list[int]:
    live = {
        number
        for (name, number), version in table.versions.items()
        if name == policy and version.serving is ServingStatus.LIVE
    }
    return sorted(live | {0})
