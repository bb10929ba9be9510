"""Which PolicyVersions a replica of one Base shall hold. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass

from core.policy import Policy, PolicyVersion, ServingStatus

_NEWEST = 2
"""Candidates kept per Policy: the newest, and the one before it while Episodes still sample from it."""
_CANDIDATE = frozenset({ServingStatus.WANTED, ServingStatus.LIVE})


@dataclass(frozen=True)
class Wanted:
    """The answer, most important first."""

    load: tuple[PolicyVersion, ...]
    left_out: tuple[PolicyVersion, ...]
    """Wanted too, but beyond what a replica holds."""


def wanted_versions(policies: Iterable[Policy], versions: Iterable[PolicyVersion], *, max_loaded: int) -> Wanted:
    """Promoted versions, then those to roll back to, then pinned ones, then the newest two of each Policy.

    Version 0 is the Base and needs no load; full weights are carried by replicas of their own, see ``full_plan``;
    refused versions are never tried again. At most ``max_loaded``
    are loaded, the least important being left out.
    """
    by_key = {
        (version.policy, version.version): version
        for version in versions
        if version.kind == "lora" and version.version != 0 and version.serving is not ServingStatus.REFUSED
    }
    known = sorted(policies, key=lambda policy: policy.name)
    names = {policy.name for policy in known}
    newest_first = sorted(
        (version for version in by_key.values() if version.policy in names),
        key=lambda version: (version.created_at, version.version),
        reverse=True,
    )
    keys: dict[tuple[str, int], None] = {}
    for policy in known:
        keys.setdefault((policy.name, policy.promoted_version))
    for policy in known:
        if policy.previous_version is not None:
            keys.setdefault((policy.name, policy.previous_version))
    for version in newest_first:
        if version.pinned:
            keys.setdefault((version.policy, version.version))
    for rank in range(_NEWEST):
        for policy in known:
            candidates = sorted(
                (v.version for v in by_key.values() if v.policy == policy.name and v.serving in _CANDIDATE),
                reverse=True,
            )
            for number in candidates[rank : rank + 1]:
                keys.setdefault((policy.name, number))
    ordered = [by_key[key] for key in keys if key in by_key]
    return Wanted(load=tuple(ordered[:max_loaded]), left_out=tuple(ordered[max_loaded:]))
