"""Which versions' checkpoint folders may be deleted: what no traffic, release, name, pin or run needs any more."""

from collections.abc import Collection, Iterable, Sequence

from core.policy import Policy, PolicyVersion, ServingStatus
from core.release import Release, ReleaseStatus

_HELD = frozenset({ServingStatus.WANTED, ServingStatus.LIVE, ServingStatus.DRAINING})
_UNDER_WAY = frozenset(
    {ReleaseStatus.EVALUATED, ReleaseStatus.SHADOWING, ReleaseStatus.RAMPING, ReleaseStatus.PROMOTED}
)


def prunable(
    policy: Policy,
    versions: Sequence[PolicyVersion],
    releases: Iterable[Release],
    *,
    keep: int,
    older_than: float,
    needed: Collection[int] = (),
) -> list[PolicyVersion]:
    """Versions whose folders may go, in ascending order. Pure.

    The newest ``keep`` stay, and those made after the Unix time ``older_than``; so do promoted and previous, those of
    ``needed`` (aliases, running releases and Experiments), what is pinned, what an engine holds or shall hold, and
    what is on its way to traffic.
    """
    stored = [one for one in versions if one.checkpoint_id is not None and one.files_removed_at is None]
    newest = {one.version for one in sorted(stored, key=lambda one: -one.version)[:keep]}
    under_way = {release.version for release in releases if release.status in _UNDER_WAY}
    staying = {policy.promoted_version, policy.previous_version, *newest, *under_way, *needed}
    return sorted(
        (
            one
            for one in stored
            if one.version not in staying
            and not one.pinned
            and one.serving not in _HELD
            and one.created_at < older_than
        ),
        key=lambda one: one.version,
    )
