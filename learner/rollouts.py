"""Asks workers for Episodes of a training step and collects them.

Jobs carry idempotency keys made of run, step and attempt: a learner that died and asks again gets the very jobs
that it had asked for. An attempt that infrastructure spoiled is asked for again under a new number.
"""

import hashlib
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import structlog

from core.config.learner import LearnerSection
from core.episode import EpisodeGroup, EpisodeStatus
from core.errors import InvalidTransition, LearnerError, NotFound
from core.ids import GROUP
from core.job import Job, JobStatus
from core.run import TrainingRun
from learner.intake import Attempt
from store.events import JOBS
from store.store import Store

log = structlog.get_logger(__name__)

_LOOK_AGAIN_SECONDS = 5.0
_SMALLEST_GROUP = 2
_MOST_REPEATS = 3
"""How often a spoiled attempt is asked for again."""
ROLLOUT = "rollout"


@dataclass(eq=False)
class _Slot:
    """One wanted attempt of a group."""

    group: EpisodeGroup
    number: int
    seed: str
    job: Job
    repeats: int = 0
    settled: bool = False
    episode_id: str | None = None


@dataclass(frozen=True)
class BatchRequest:
    """What was asked for on behalf of one step."""

    step: int
    version: int
    slots: tuple[_Slot, ...]

    @property
    def versions(self) -> frozenset[int]:
        """The PolicyVersions that sample it: of groups that were asked for before, those of that time."""
        return frozenset(slot.group.version for slot in self.slots)


class Rollouts:
    """Episodes of one TrainingRun."""

    def __init__(self, *, store: Store, config: LearnerSection, run: TrainingRun) -> None:
        self._store = store
        self._config = config
        self._run = run
        self._open: list[_Slot] = []

    async def request(self, *, step: int, version: int, tasks: Sequence[str]) -> BatchRequest:
        """Enqueue a group of ``group_size`` attempts at each of ``tasks``, sampled by ``version``."""
        slots = []
        for index, task_id in enumerate(tasks):
            group = await self._group(step, index, task_id, version)
            for number in range(self._config.group_size):
                seed = f"{self._run.seed}:{step}:{index}"
                job = await self._enqueue(group, number, seed)
                slots.append(_Slot(group=group, number=number, seed=seed, job=job))
        log.info("episodes_requested", run=self._run.id, step=step, version=version, attempts=len(slots))
        self._open += slots
        return BatchRequest(step=step, version=version, slots=tuple(slots))

    async def collect(self, request: BatchRequest) -> list[list[Attempt]]:
        """Wait for the request's Episodes; groups with at least two of them, each with its Turns.

        Stops waiting after ``episode_timeout_seconds`` and withdraws what is still open. Raises LearnerError when
        no group came together.
        """
        deadline = time.monotonic() + self._config.episode_timeout_seconds
        async with self._store.events.subscribe([JOBS]) as subscription:
            while await self._settle(request.slots):
                remaining = deadline - time.monotonic()
                if remaining <= 0:
                    await self._withdraw(request.slots)
                    break
                await subscription.wait(min(_LOOK_AGAIN_SECONDS, remaining))
        self._open = [slot for slot in self._open if slot not in request.slots]
        groups = await self._attempts(request.slots)
        if not groups:
            raise LearnerError(
                f"no EpisodeGroup of step {request.step} came together within "
                f"{self._config.episode_timeout_seconds:.0f} s",
                hint="is a worker running? dead jobs say what went wrong",
            )
        return groups

    async def withdraw(self) -> None:
        """Cancel what nobody has finished of all that was asked for: the run has failed for good."""
        await self._withdraw(self._open)

    async def _settle(self, slots: Sequence[_Slot]) -> bool:
        """Read job states, ask again for spoiled attempts; whether any slot is still open."""
        waiting = [slot for slot in slots if not slot.settled]
        jobs = await self._store.queue.get_many([slot.job.id for slot in waiting])
        for slot, job in zip(waiting, jobs, strict=True):
            slot.job = job
            result = job.result or {}
            if job.status in (JobStatus.QUEUED, JobStatus.LEASED):
                continue
            if job.status is JobStatus.DONE and result.get("status") == EpisodeStatus.SCORED:
                slot.episode_id, slot.settled = result["episode_id"], True
            else:
                await self._ask_again(slot)
        return not all(slot.settled for slot in slots)

    async def _ask_again(self, slot: _Slot) -> None:
        if slot.repeats == _MOST_REPEATS:
            slot.settled = True
            log.warning("attempt_given_up", group=slot.group.id, attempt=slot.number, error=slot.job.error)
            return
        slot.repeats += 1
        number = slot.number + slot.repeats * self._config.group_size
        slot.job = await self._enqueue(slot.group, number, slot.seed)
        log.info("attempt_repeated", group=slot.group.id, attempt=slot.number, repeat=slot.repeats)

    async def _withdraw(self, slots: Sequence[_Slot]) -> None:
        for slot in slots:
            if slot.settled:
                continue
            try:
                await self._store.queue.cancel(slot.job.id)
            except InvalidTransition:
                log.debug("attempt_finished_meanwhile", job=slot.job.id)

    async def _attempts(self, slots: Sequence[_Slot]) -> list[list[Attempt]]:
        groups: dict[str, list[Attempt]] = {}
        async with self._store.reading() as work:
            for slot in slots:
                if slot.episode_id is not None:
                    episode = await work.episodes.get(slot.episode_id)
                    turns = tuple(await work.turns.for_episode(slot.episode_id))
                    groups.setdefault(slot.group.id, []).append(Attempt(episode=episode, turns=turns))
        return [attempts for attempts in groups.values() if len(attempts) >= _SMALLEST_GROUP]

    async def _group(self, step: int, index: int, task_id: str, version: int) -> EpisodeGroup:
        group_id = f"{GROUP}_{self._run.id.rpartition('_')[2]}_{step:06d}_{index:03d}"
        async with self._store.transaction() as work:
            try:
                return await work.groups.get(group_id)
            except NotFound:
                group = EpisodeGroup(
                    id=group_id,
                    task_id=task_id,
                    policy=self._run.policy,
                    version=version,
                    size=self._config.group_size,
                )
                await work.groups.add(group)
                return group

    async def _enqueue(self, group: EpisodeGroup, number: int, seed: str) -> Job:
        payload: dict[str, Any] = {
            "task_id": group.task_id,
            "policy": self._run.policy,
            "version": group.version,
            "variant": "standard",
            "group_id": group.id,
            "attempt": number,
            "purpose": "train",
            "temperature": self._config.temperature,
            "seed": _attempt_seed(f"{seed}:{number}"),
            "run_id": self._run.id,
        }
        return await self._store.queue.enqueue(ROLLOUT, payload, idempotency_key=f"{group.id}:{number}")


def _attempt_seed(text: str) -> int:
    """A positive 31-bit seed: the same in every run with the same seed."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4]) & 0x7FFF_FFFF
