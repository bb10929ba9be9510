"""Finds the Turn or Episode that a client names, also while it is still on its way into the store."""

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from core import ids
from core.episode import Episode
from core.errors import NotFound
from store.events import TURNS
from store.store import Store
from store.unit_of_work import UnitOfWork

PATIENCE_SECONDS = 2.0
"""How long an id that was given out lately is waited for."""
LATELY_SECONDS = 600.0
"""An older id is in the store, or nowhere."""
_POLL_SECONDS = 0.2
_AHEAD_SECONDS = 60.0
"""By how much the clock of another gateway may be ahead."""

FoundT = TypeVar("FoundT")


@dataclass(frozen=True, slots=True)
class Subject:
    """What a Feedback is about."""

    episode_id: str
    turn_id: str | None = None


async def find_episode(store: Store, episode_id: str, *, tenant_id: str) -> Episode:
    """A Tenant's Episode; raises NotFound, with one answer for what does not exist and what another tenant has."""

    async def look(work: UnitOfWork) -> Episode | None:
        return await own_episode(work, episode_id, tenant_id=tenant_id)

    found = await _find_patiently(store, episode_id, look)
    if found is None:
        raise no_episode(episode_id)
    return found


async def find_turn(store: Store, turn_id: str, *, tenant_id: str) -> Subject:
    """A Tenant's Turn; raises NotFound as ``find_episode``."""

    async def look(work: UnitOfWork) -> str | None:
        return await work.turns.episode_of(turn_id, tenant_id=tenant_id)

    episode_id = await _find_patiently(store, turn_id, look)
    if episode_id is None:
        raise NotFound(
            f"there is no Turn '{turn_id}'",
            hint="a Turn that was answered just now may be written a little later: try again",
            param="turn_id",
        )
    return Subject(episode_id=episode_id, turn_id=turn_id)


async def own_episode(work: UnitOfWork, episode_id: str, *, tenant_id: str, lock: bool = False) -> Episode | None:
    """A Tenant's Episode, if it is in the store."""
    try:
        episode = await work.episodes.get(episode_id, lock=lock)
    except NotFound:
        return None
    return episode if episode.tenant_id == tenant_id else None


def no_episode(episode_id: str) -> NotFound:
    """The error for an Episode that the Tenant does not have."""
    return NotFound(f"there is no Episode '{episode_id}'", param="episode_id")


async def _find_patiently(
    store: Store, identity: str, look: Callable[[UnitOfWork], Awaitable[FoundT | None]]
) -> FoundT | None:
    """What ``look`` finds; asked again for a while when the id was given out lately."""
    async with store.reading() as work:
        found = await look(work)
    if found is not None or not _is_recent(identity):
        return found
    deadline = time.monotonic() + PATIENCE_SECONDS
    async with store.events.subscribe([TURNS]) as subscription:
        while True:
            async with store.reading() as work:
                found = await look(work)
            if found is not None or time.monotonic() >= deadline:
                return found
            await subscription.wait(_POLL_SECONDS)


def _is_recent(identity: str) -> bool:
    given_out = ids.time_of(identity)
    return given_out is not None and -_AHEAD_SECONDS <= time.time() - given_out <= LATELY_SECONDS
