"""Marks the versions that saw withdrawn Episodes, themselves or through an ancestor."""

from collections.abc import Collection, Mapping

from core.policy import PolicyVersion
from store.unit_of_work import UnitOfWork


def ancestors(versions: Mapping[int, PolicyVersion], number: int) -> list[int]:
    """A version and those that it comes from, newest first; the Base is not among them. Pure."""
    line: list[int] = []
    at: int | None = number
    while at and at in versions and at not in line:
        line.append(at)
        at = versions[at].parent_version
    return line


def checkpoints_behind(versions: Mapping[int, PolicyVersion], number: int) -> list[str]:
    """Ids of the Checkpoints of a version and its ancestors. Pure."""
    found = [versions[one].checkpoint_id for one in ancestors(versions, number)]
    return [one for one in found if one is not None]


async def mark_withdrawn(
    work: UnitOfWork, policy: str, numbers: Collection[int] | None = None
) -> list[PolicyVersion]:
    """Write ``saw_withdrawn`` of a Policy's versions anew (all, or those of ``numbers``); those that saw any."""
    versions = {one.version: one for one in await work.versions.list(policy)}
    tainted = []
    for number in sorted(versions if numbers is None else numbers):
        seen = await work.withdrawals.seen_by(checkpoints_behind(versions, number))
        if seen != versions[number].saw_withdrawn:
            fresh = await work.versions.get(policy, number, lock=True)
            await work.versions.update(fresh.model_copy(update={"saw_withdrawn": seen}))
            versions[number] = fresh.model_copy(update={"saw_withdrawn": seen})
        if seen:
            tainted.append(versions[number])
    return tainted
