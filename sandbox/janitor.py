"""Janitor: ends what its owner can no longer end, for the owner was killed and its job is over.

Every worker has one. What it finds is decided on a snapshot, and again in the transaction that changes it.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import structlog

from core.episode import Episode, EpisodeStatus
from core.errors import HoneError
from core.job import Job, JobStatus
from core.noun import now
from core.policy import PolicyVersion, ServingStatus
from core.run import RunStatus, TrainingRun
from store.events import VERSIONS
from store.store import Store
from store.unit_of_work import UnitOfWork

log = structlog.get_logger(__name__)

TRAIN = "train"
GRACE_SECONDS = 60.0
"""How old an Episode of an ended job is before it counts as an orphan."""
SILENT_SECONDS = 3_600.0
"""After how long without a Turn a client's conversation is over."""
_PERIOD_SECONDS = 30.0
_ENDED = frozenset({JobStatus.DONE, JobStatus.DEAD, JobStatus.CANCELLED})
_PINNABLE = tuple(status for status in ServingStatus if status is not ServingStatus.REFUSED)


@dataclass(frozen=True)
class Snapshot:
    """What the decision rests on. ``time`` is Unix time."""

    time: float
    episodes: Sequence[Episode]
    """Those not ended yet."""
    newest_turns: Mapping[str, float]
    """By Episode: when its newest Turn was made."""
    pinned: Sequence[PolicyVersion]
    jobs: Mapping[str, JobStatus]
    runs: Mapping[str, TrainingRun]
    given_up: Sequence[Job] = ()
    """Dead and cancelled train jobs."""


@dataclass(frozen=True)
class Leftovers:
    """What is to be ended."""

    episodes: dict[str, str] = field(default_factory=dict)
    """By Episode: why."""
    pins: dict[tuple[str, int], frozenset[str]] = field(default_factory=dict)
    """By Policy and version: the holders that are gone."""
    runs: dict[str, str] = field(default_factory=dict)
    """By TrainingRun: why."""

    def __bool__(self) -> bool:
        return bool(self.episodes or self.pins or self.runs)


def find_leftovers(seen: Snapshot) -> Leftovers:
    """What nobody else will end. A job or run that is not known is left alone. Pure."""
    episodes = {episode.id: why for episode in seen.episodes if (why := _orphaned(episode, seen))}
    pins = {
        (version.policy, version.version): gone
        for version in seen.pinned
        if (gone := frozenset(holder for holder in version.pins if _has_ended(holder, seen)))
    }
    runs = {
        run.id: f"its job is {job.status.value}: {job.error or 'no error recorded'}"
        for job in reversed(seen.given_up)
        if (run := seen.runs.get(str(job.payload.get("run_id")))) is not None
        and run.status is RunStatus.RUNNING
        and run.job_id in (None, job.id)
    }
    return Leftovers(episodes=episodes, pins=pins, runs=runs)


def _orphaned(episode: Episode, seen: Snapshot) -> str | None:
    job_id = episode.metadata.get("job_id")
    if job_id is not None:
        status = seen.jobs.get(str(job_id))
        if status in _ENDED and seen.time - episode.created_at > GRACE_SECONDS:
            return f"job {job_id} is {status} and left it"
        return None
    last = max(episode.created_at, seen.newest_turns.get(episode.id, 0.0))
    if episode.purpose == "client" and seen.time - last > SILENT_SECONDS:
        return f"no Turn for {SILENT_SECONDS:.0f} s" if episode.status is EpisodeStatus.RUNNING else None
    return None


def _has_ended(holder: str, seen: Snapshot) -> bool:
    run = seen.runs.get(holder)
    return seen.jobs.get(holder) in _ENDED or (run is not None and run.status is not RunStatus.RUNNING)


class Janitor:
    """Tidies up until cancelled."""

    def __init__(self, *, store: Store) -> None:
        self._store = store

    async def run(self) -> None:
        """Tidy up every half minute; a store that is away is waited for."""
        while True:
            try:
                await self.tidy()
            except HoneError as error:
                log.warning("tidying_failed", error=str(error))
            await asyncio.sleep(_PERIOD_SECONDS)

    async def tidy(self) -> Leftovers:
        """End what is left over; what it was."""
        async with self._store.reading() as tx:
            if not find_leftovers(await _look(tx)):
                return Leftovers()
        async with self._store.transaction() as tx:
            found = find_leftovers(await _look(tx))
            for run_id, why in sorted(found.runs.items()):
                await _fail_run(tx, run_id, why)
            for key, gone in sorted(found.pins.items()):
                version = await tx.versions.get(*key, lock=True)
                pins = tuple(holder for holder in version.pins if holder not in gone)
                await tx.versions.update(version.model_copy(update={"pins": pins}))
            for episode_id, why in sorted(found.episodes.items()):
                await _end_episode(tx, episode_id, why)
        log.info("tidied_up", episodes=len(found.episodes), pins=len(found.pins), runs=len(found.runs))
        if found.pins:
            await self._store.events.publish(VERSIONS)
        return found


async def _look(tx: UnitOfWork) -> Snapshot:
    time = now()
    episodes = await tx.episodes.unfinished(created_before=time - GRACE_SECONDS)
    pinned = [version for version in await tx.versions.list_serving(_PINNABLE) if version.pins]
    holders = {holder for version in pinned for holder in version.pins}
    given_up = await tx.jobs.given_up(TRAIN)
    owners = {str(episode.metadata["job_id"]) for episode in episodes if episode.metadata.get("job_id")}
    clients = [episode.id for episode in episodes if episode.purpose == "client"]
    return Snapshot(
        time=time,
        episodes=episodes,
        newest_turns=await tx.turns.newest(clients) if clients else {},
        pinned=pinned,
        jobs=await tx.jobs.statuses(owners | holders),
        runs=await tx.runs.get_many(holders | {str(job.payload.get("run_id")) for job in given_up}),
        given_up=given_up,
    )


async def _fail_run(tx: UnitOfWork, run_id: str, why: str) -> None:
    run = await tx.runs.get(run_id, lock=True)
    if run.status is RunStatus.RUNNING:
        await tx.runs.put(run.model_copy(update={"status": RunStatus.FAILED, "error": why}))


async def _end_episode(tx: UnitOfWork, episode_id: str, why: str) -> None:
    """Running → expired; finished, which cannot expire, → invalid."""
    episode = await tx.episodes.get(episode_id, lock=True)
    ends = {EpisodeStatus.RUNNING: EpisodeStatus.EXPIRED, EpisodeStatus.FINISHED: EpisodeStatus.INVALID}
    if episode.status in ends:
        update = {"status": ends[episode.status], "error": why, "finished_at": now()}
        await tx.episodes.update(episode.model_copy(update=update))
