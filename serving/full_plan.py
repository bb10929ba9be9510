"""Which version of a full-weight Policy each replica shall carry. Pure.

All replicas carry the promoted version. Where there are several, one seat is for trying: it carries what somebody
pinned, or else the newest candidate, so that a version can be probed and evaluated before it is promoted; without
either it carries the promoted version too. A single replica is never taken from the promoted version's traffic.
"""

from collections.abc import Iterable, Sequence

from core.policy import Policy, PolicyVersion, ServingStatus

_CANDIDATE = frozenset({ServingStatus.WANTED, ServingStatus.LIVE})


def full_plan(policy: Policy, versions: Iterable[PolicyVersion], carried: Sequence[int | None]) -> tuple[int, ...]:
    """The version number for each replica, in the order of ``carried``: what each carries now, None if unknown.

    Refused versions are never tried again; a promoted version that was refused or is unknown gives way to the one
    before it, or to the Base.
    """
    known = {
        version.version: version
        for version in versions
        if version.policy == policy.name and version.kind == "full" and version.serving is not ServingStatus.REFUSED
    }
    promoted = next((one for one in (policy.promoted_version, policy.previous_version) if one in known), 0)
    plan = [promoted] * len(carried)
    candidate = _candidate(known, policy.promoted_version)
    if candidate is not None and len(plan) > 1:
        seat = carried.index(candidate) if candidate in carried else len(plan) - 1
        plan[seat] = candidate
    return tuple(plan)


def _candidate(known: dict[int, PolicyVersion], promoted: int) -> int | None:
    pinned = [number for number, version in known.items() if version.pinned and number != promoted]
    newer = [number for number, one in known.items() if number > promoted and one.serving in _CANDIDATE]
    return max(pinned or newer, default=None)
