"""How a routing table reads replicas that carry full weights of a Policy in place of the Base's. Pure."""

from collections.abc import Iterable, Sequence
from typing import TypeAlias

from core.deployment import Deployment, DeploymentStatus

WeightsKey: TypeAlias = tuple[int, float, float]
"""Changes whenever a replica's weights were replaced, even by the same version again."""


def carried_version(deployment: Deployment) -> int:
    """The version of its Policy that a replica carries; 0: the Base's own weights."""
    return 0 if deployment.weights is None else deployment.weights.version


def weights_key(deployment: Deployment) -> WeightsKey:
    """What the replica's weights are told apart by, before and after a swap or a rollback."""
    loaded_at = 0.0 if deployment.weights is None else deployment.weights.loaded_at
    swapped_at = next((swap.at for swap in reversed(deployment.swaps) if swap.kind == "full"), 0.0)
    return carried_version(deployment), loaded_at, swapped_at


def answering(ready: Sequence[Deployment], policy: str, version: int, *, exactly: bool) -> list[Deployment]:
    """The ready replicas that answer for ``policy@version``.

    Unless ``exactly`` that version was asked for, others of the Policy stand in while none carries it: what was
    promoted before goes on answering until the promoted version is in. A version that is only tried never does.
    """
    same = [one for one in ready if one.policy == policy]
    holding = [one for one in same if carried_version(one) == version]
    if holding or exactly:
        return holding
    return [one for one in same if one.weights is None or not one.weights.candidate]


def swapping(deployments: Iterable[Deployment], base: str, name: str) -> bool:
    """Whether a replica that could answer for ``name`` is closed only while its weights are replaced."""
    return any(
        one.base == base and one.status is DeploymentStatus.SWAPPING and one.policy == name for one in deployments
    )


def not_carried_reason(deployments: Sequence[Deployment], policy: str) -> str:
    """Why no replica answers for a version of ``policy``, in plain words."""
    owners = sorted({one.policy for one in deployments if one.policy is not None})
    if policy not in owners:
        return f"the replicas carry the full weights of '{owners[0]}' and serve nothing else"
    held = sorted({f"@{carried_version(one)}" for one in deployments if one.policy == policy})
    more = "" if len(deployments) > 1 else "; a second replica would carry versions that are tried or pinned"
    return f"a replica carries one version of full weights at a time, now {', '.join(held)}{more}"
