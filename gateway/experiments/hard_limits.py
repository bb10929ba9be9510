"""Hard limits: what ends a ramp without statistics, because it is not a matter of degree. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from core.deployment import Deployment, DeploymentStatus
from core.policy import Policy, PolicyVersion, ServingStatus

_BAD_SWAPS = frozenset({"refused", "failed", "rolled_back"})


@dataclass(frozen=True, slots=True)
class Held:
    """A replica that held the candidate when it was last looked at."""

    pid: int | None
    machine: str | None


def holders(deployments: Iterable[Deployment], policy: str, version: int) -> dict[str, Held]:
    """The ready replicas that hold a version."""
    return {
        one.id: Held(one.pid, one.machine)
        for one in deployments
        if one.status is DeploymentStatus.READY and _holds(one, policy, version)
    }


def still_held(
    before: Mapping[str, Held], deployments: Sequence[Deployment], policy: str, version: int
) -> dict[str, Held]:
    """What to compare with at the next look: a replica that is stopped or restarted by wish is forgotten."""
    wished = {
        one.id
        for one in deployments
        if one.restart is not None or one.status in (DeploymentStatus.STOPPED, DeploymentStatus.DRAINING)
    }
    kept = {name: held for name, held in before.items() if name not in wished}
    return kept | holders(deployments, policy, version)


def broken_limits(
    version: PolicyVersion,
    deployments: Iterable[Deployment],
    *,
    since: float,
    held: Mapping[str, Held],
) -> tuple[str, ...]:
    """What went wrong with ``version`` since the Experiment began. ``held``: what ``holders`` said before.

    A replica that was stopped, drained or restarted by wish did not crash.
    """
    found = []
    if version.serving is ServingStatus.REFUSED:
        found.append(f"{version.label} was refused: {version.serving_reason or 'no reason recorded'}")
    for one in deployments:
        bad = [
            swap
            for swap in one.swaps
            if (swap.policy, swap.version) == (version.policy, version.version)
            and swap.kind != "drafter"
            and swap.outcome in _BAD_SWAPS
            and swap.at >= since
        ]
        if bad:
            why = bad[-1].reason or "no reason recorded"
            found.append(f"{version.label} could not be loaded on {one.id} ({bad[-1].outcome}): {why}")
        if _crashed(one, version, held.get(one.id)):
            why = one.status_reason or "it does not answer"
            found.append(f"replica {one.id}, which held {version.label}, broke down: {why}")
    return tuple(found)


def moved_away(policy: Policy, promoted_version: int) -> str | None:
    """Why an Experiment's control is no longer what the Policy's name means; None: it still is."""
    if policy.promoted_version == promoted_version:
        return None
    return f"version {policy.promoted_version} was promoted meanwhile, in place of {promoted_version}"


def _crashed(deployment: Deployment, version: PolicyVersion, before: Held | None) -> bool:
    if deployment.restart is not None:
        return False
    if deployment.status is DeploymentStatus.UNHEALTHY:
        return before is not None or _holds(deployment, version.policy, version.version)
    # Another process under the same name: the one that held it has ended between two looks.
    replaced = before is not None and before.pid is not None and deployment.pid not in (None, before.pid)
    return replaced and deployment.machine == (before.machine if before is not None else None)


def _holds(deployment: Deployment, policy: str, version: int) -> bool:
    weights = deployment.weights
    if weights is not None and (weights.policy, weights.version) == (policy, version):
        return True
    return any((one.policy, one.version) == (policy, version) for one in deployment.loaded)
