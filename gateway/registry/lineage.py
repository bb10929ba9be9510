"""Lineage both ways: the Episodes behind a version, and the versions that an Episode is behind."""

from pydantic import BaseModel, ConfigDict

from core.errors import NotFound
from store.taint import ancestors
from store.unit_of_work import UnitOfWork


class VersionLineage(BaseModel):
    """What a version was trained on."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    label: str
    ancestors: list[int]
    """The version and those that it comes from, newest first; the Base is not among them."""
    episodes: dict[int, list[str]]
    """By the version whose own step saw them."""
    withdrawn: list[str]
    """Those of them that were withdrawn: to be left out when it is trained again."""


class EpisodeVersion(BaseModel):
    """A version that saw an Episode."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    policy: str
    version: int
    direct: bool
    """Its own step saw it; else an ancestor's did."""
    files_removed: bool


async def lineage_of(work: UnitOfWork, policy: str, number: int) -> VersionLineage:
    """The Episodes behind a version, its ancestors' included. Raises NotFound."""
    label = (await work.versions.get(policy, number)).label
    versions = {one.version: one for one in await work.versions.list(policy)}
    line = ancestors(versions, number)
    episodes = {}
    for one in line:
        checkpoint = versions[one].checkpoint_id
        episodes[one] = [] if checkpoint is None else await work.lineage.episodes_of(checkpoint)
    withdrawn = await work.withdrawals.among(name for names in episodes.values() for name in names)
    return VersionLineage(label=label, ancestors=line, episodes=episodes, withdrawn=sorted(withdrawn))


async def versions_of(work: UnitOfWork, episode_id: str) -> list[EpisodeVersion]:
    """The versions that saw an Episode, themselves or by descent, in order of Policy and number."""
    direct: dict[str, set[int]] = {}
    for checkpoint_id in await work.lineage.checkpoints_of(episode_id):
        try:
            checkpoint = await work.checkpoints.get(checkpoint_id)
        except NotFound:
            continue
        direct.setdefault(checkpoint.policy, set()).add(checkpoint.version)
    found = []
    for policy in sorted(direct):
        versions = {one.version: one for one in await work.versions.list(policy)}
        for number in sorted(versions):
            if direct[policy] & set(ancestors(versions, number)):
                gone = versions[number].files_removed_at is not None
                own = number in direct[policy]
                found.append(EpisodeVersion(policy=policy, version=number, direct=own, files_removed=gone))
    return found
