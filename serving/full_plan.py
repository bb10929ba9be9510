"""Which version of a full-weight Policy each replica shall carry. Pure.

All replicas carry the promoted version. Where there are several, one seat is for trying: it carries what somebody
pinned, or else the newest candidate, so that a version can be probed and evaluated before it is promoted; without
either it carries the promoted version too. A single seat is never taken from the promoted version's traffic; replicas
that cannot be given anything now (lost, or drained for a restart) are no seats.
"""

from collections.abc import Iterable, Sequence

from core.policy import Policy, PolicyVersion, ServingStatus

_CANDIDATE = frozenset({ServingStatus.WANTED, ServingStatus.LIVE})


def full_plan(
    policy: Policy,
    versions: Iterable[PolicyVersion],
    carried: Sequence[int | None],
    *,
    seats: Sequence[bool] | None = None,
) -> tuple[int, ...]:
    """The version number for each replica, in the order of ``carried``: what each carries now, None if unknown.

    ``seats``: which replicas are reachable and not closed, in the same order; None: all are.

    Refused versions are never tried again; a promoted version that was refused or is unknown gives way to the one
    before it, or to the Base.
    """
    known = _known(policy, versions)
    promoted = next((one for one in (policy.promoted_version, policy.previous_version) if one in known), 0)
    plan = [promoted] * len(carried)
    candidate = _candidate(known, policy.promoted_version)
    live = [number for number in range(len(plan)) if seats is None or seats[number]]
    if candidate is not None and len(live) > 1:
        plan[next((number for number in live if carried[number] == candidate), live[-1])] = candidate
    return tuple(plan)


def wanted_candidate(policy: Policy, versions: Iterable[PolicyVersion]) -> int | None:
    """The version that is tried as soon as there is a seat for it; None: there is none to try."""
    return _candidate(_known(policy, versions), policy.promoted_version)


def _known(policy: Policy, versions: Iterable[PolicyVersion]) -> dict[int, PolicyVersion]:
    return {
        version.version: version
        for version in versions
        if version.policy == policy.name and version.kind == "full" and version.serving is not ServingStatus.REFUSED
    }


def _candidate(known: dict[int, PolicyVersion], promoted: int) -> int | None:
    pinned = [number for number, version in known.items() if version.pinned and number != promoted]
    newer = [number for number, one in known.items() if number > promoted and one.serving in _CANDIDATE]
    return max(pinned or newer, default=None)
