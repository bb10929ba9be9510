"""Learner: leases ``train`` and ``distil`` jobs and runs them; the process's other ranks follow.

A job whose learner died is leased again by another learner, which goes on from the run's newest resume state.
"""

import asyncio
import multiprocessing
import socket
import tempfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import structlog
from prometheus_client import CollectorRegistry
from pydantic import ValidationError

from core.config.learner import LearnerSection
from core.config.schema import HoneConfig
from core.distillation import DISTIL
from core.errors import ConfigurationError, HoneError, InvalidRequest, LearnerError, LeaseLost, NotFound
from core.ids import new_id
from core.job import Job
from core.run import RunStatus, TrainingRun
from learner.distil_job import run_distil
from learner.distributed import World, is_launched, join_world, leave_world
from learner.live.run import run_live
from learner.metrics import LearnerMetrics
from learner.rollouts import Rollouts
from learner.session import TrainingSession, check_temperature
from learner.tracking.trackers import open_trackers
from learner.train import run_grpo, run_sft
from learner.trainer import dismiss_ranks, follow_rank
from store.events import JOBS
from store.store import Store

log = structlog.get_logger(__name__)

TRAIN = "train"
_LEASE_SECONDS = 30.0
_LOOK_AGAIN_SECONDS = 5.0
_RANK_STOP_SECONDS = 10.0
_PAUSE_SECONDS = 2.0
"""Between two attempts to reach a store that fails."""


class Learner:
    """Runs one job at a time. ``start`` and ``stop`` own all that runs in the background."""

    def __init__(self, *, config: HoneConfig, store: Store, registry: CollectorRegistry) -> None:
        self._config = config
        self._store = store
        self._metrics = LearnerMetrics(registry)
        self._owner = f"learner:{socket.gethostname()}:{new_id('lrn')}"
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="training")
        self._world: World | None = None
        self._ranks: list[BaseProcess] = []
        self._meeting: tempfile.TemporaryDirectory[str] | None = None
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Gather the ranks and begin to lease jobs. Raises LearnerError when the ranks cannot meet."""
        self._world = await asyncio.get_running_loop().run_in_executor(self._executor, self._gather_ranks)
        self._task = asyncio.create_task(self._serve(), name="learner")

    async def stop(self) -> None:
        """Hand a running job back (another learner resumes it) and end the other ranks."""
        if self._task is not None:
            await _cancelled(self._task)  # what it failed with is for ``wait`` to raise
        try:
            if self._world is not None:
                world = self._world
                with suppress(LearnerError):
                    await asyncio.get_running_loop().run_in_executor(self._executor, _part, world)
        finally:
            await asyncio.to_thread(self._end_ranks)
            await asyncio.to_thread(self._executor.shutdown)

    async def wait(self) -> None:
        """Until the learner ends by itself, which is a failure: re-raises it."""
        assert self._task is not None, "the learner was not started"
        await self._task

    async def _serve(self) -> None:
        async with self._store.events.subscribe([JOBS]) as subscription:
            while True:
                try:
                    jobs = await self._store.queue.claim([TRAIN, DISTIL], self._owner, lease_seconds=_LEASE_SECONDS)
                except HoneError as error:
                    log.warning("leasing_failed", owner=self._owner, error=str(error))
                    await asyncio.sleep(_PAUSE_SECONDS)
                    continue
                if jobs:
                    await self._lead(jobs[0])
                    self._check_ranks()
                else:
                    await subscription.wait(_LOOK_AGAIN_SECONDS)

    async def _lead(self, job: Job) -> None:
        """Run the job under a heartbeat; whichever ends first decides."""
        work = asyncio.create_task(self._run(job), name=f"{job.kind}:{job.id}")
        beat = asyncio.create_task(self._beat(job), name=f"heartbeat:{job.id}")
        try:
            await asyncio.wait({work, beat}, return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                await self._finish(job, work)
            else:
                log.warning("lease_lost", job=job.id)
        except asyncio.CancelledError:
            await _cancelled(work)
            with suppress(HoneError):
                await self._store.queue.release(job)
            raise
        finally:
            await _cancelled(work)
            await _cancelled(beat)

    async def _finish(self, job: Job, work: asyncio.Task[dict[str, Any]]) -> None:
        """Report how the work ended until the store takes it, or the lease is lost."""
        error = work.exception()
        if error is not None:
            log.error("job_failed", job=job.id, kind=job.kind, error=str(error), exc_info=error)
        while True:
            try:
                if error is None:
                    await self._store.queue.complete(job, work.result())
                    return
                if _for_good(job, error):
                    await self._mark_failed(job, error)
                await self._store.queue.fail(job, f"{type(error).__name__}: {error}", retryable=_retryable(error))
                return
            except LeaseLost:
                log.warning("lease_lost", job=job.id)
                return
            except HoneError as failure:
                log.warning("report_failed", job=job.id, error=str(failure))
                await asyncio.sleep(_PAUSE_SECONDS)

    async def _beat(self, job: Job) -> None:
        while True:
            await asyncio.sleep(_LEASE_SECONDS / 3)
            try:
                await self._store.queue.heartbeat(job, _LEASE_SECONDS)
            except LeaseLost:
                return
            except HoneError as error:
                log.warning("heartbeat_failed", job=job.id, error=str(error))

    async def _run(self, job: Job) -> dict[str, Any]:
        assert self._world is not None, "the learner was not started"
        if job.kind == DISTIL:
            return await run_distil(
                job, config=self._config, store=self._store, world=self._world, executor=self._executor
            )
        config = self._config.model_copy(
            update={"learner": apply_overrides(self._config.learner, job.payload.get("overrides", {}))}
        )
        run = await self._run_of(job, config.learner)
        tracker = open_trackers(
            config.learner.tracking, folder=config.data_dir.expanduser().absolute() / "runs" / run.id, run=run
        )
        session = TrainingSession(
            run=run,
            config=config,
            store=self._store,
            world=self._world,
            executor=self._executor,
            metrics=self._metrics,
            tracker=tracker,
        )
        sft = run.algorithm == "sft"
        rollouts = Rollouts(store=self._store, config=config.learner, run=run)
        try:
            await session.open(config.learner.sft_learning_rate if sft else config.learner.learning_rate)
            if sft:
                run = await run_sft(session)
            elif run.algorithm == "live":
                run = await run_live(session, shuffle_rewards=bool(job.payload.get("shuffle_rewards", False)))
            else:
                shuffle = bool(job.payload.get("shuffle_rewards", False))
                run = await run_grpo(session, rollouts, shuffle_rewards=shuffle)
        except Exception as error:
            if _for_good(job, error) and not isinstance(error, LeaseLost):
                await rollouts.withdraw()
            raise
        finally:
            await session.close()
            await asyncio.to_thread(tracker.close)
        self._metrics.ended(run, run.status.value)
        versions = sorted({step.version for step in run.steps} - {run.start_version})
        stopped = {"stopped": run.error} if run.status is RunStatus.STOPPED else {}
        return {"run_id": run.id, "versions": versions, **stopped}

    async def _run_of(self, job: Job, config: LearnerSection) -> TrainingRun:
        """The stored run of an interrupted job, or a new one. Raises InvalidRequest for a malformed payload."""
        payload = job.payload
        try:
            async with self._store.reading() as work:
                stored = await work.runs.get(payload["run_id"])
            return stored.model_copy(update={"job_id": job.id, "lease_token": job.token})
        except NotFound:
            log.info("run_begins", run=payload["run_id"], job=job.id)
        except KeyError as error:
            raise InvalidRequest("a train job needs a run_id") from error
        try:
            return TrainingRun(
                id=payload["run_id"],
                policy=payload["policy"],
                algorithm=payload["algorithm"],
                start_version=payload.get("start_version", 0),
                domains=tuple(payload["domains"]),
                planned_steps=payload.get("steps", 0),
                seed=payload.get("seed", 0),
                config=config.model_dump(mode="json") | {"shuffle_rewards": payload.get("shuffle_rewards", False)},
                job_id=job.id,
                lease_token=job.token,
            )
        except (KeyError, ValidationError) as error:
            raise InvalidRequest(f"the train job's payload is malformed: {error}") from error

    async def _mark_failed(self, job: Job, error: BaseException) -> None:
        try:
            async with self._store.transaction() as work:
                run = await work.runs.get(job.payload.get("run_id", ""), lock=True)
                if run.job_id not in (None, job.id) or run.lease_token > job.token:
                    log.warning("run_not_marked", run=run.id, job=job.id, leader=run.job_id)
                    return
                run = run.model_copy(update={"status": RunStatus.FAILED, "error": str(error)})
                await work.runs.put(run)
        except NotFound:
            return  # it failed before there was a run
        self._metrics.ended(run, "failed")

    def _gather_ranks(self) -> World:
        size = self._config.learner.ranks
        if size == 1 or is_launched():
            world = join_world()
            if not world.leads:
                raise LearnerError(f"rank {world.rank} must follow (rank_main), not lead")
            return world
        self._meeting = tempfile.TemporaryDirectory(prefix="hone-ranks-")
        rendezvous = f"file://{Path(self._meeting.name) / 'rendezvous'}"
        context = multiprocessing.get_context("spawn")
        for rank in range(1, size):
            process = context.Process(target=rank_main, args=(rank, size, rendezvous), daemon=True)
            process.start()
            self._ranks.append(process)
        return join_world(rank=0, size=size, rendezvous=rendezvous)

    def _check_ranks(self) -> None:
        dead = [process.pid for process in self._ranks if not process.is_alive()]
        if dead:
            raise LearnerError(f"training processes {dead} died", hint="restart the learner: its run goes on")

    def _end_ranks(self) -> None:
        for process in self._ranks:
            process.join(_RANK_STOP_SECONDS)
            if process.is_alive():
                process.kill()
        if self._meeting is not None:
            self._meeting.cleanup()


def rank_main(rank: int = 0, size: int = 1, rendezvous: str | None = None) -> None:
    """The whole life of a training process above rank 0; a launcher's variables stand in for the arguments."""
    follow_rank(join_world(rank=rank, size=size, rendezvous=rendezvous))
    leave_world()


def _part(world: World) -> None:
    dismiss_ranks(world)
    if world.size > 1:
        leave_world()


def apply_overrides(config: LearnerSection, overrides: dict[str, Any]) -> LearnerSection:
    """The section with dotted keys replaced. Raises ConfigurationError that names the key."""
    values = config.model_dump()
    for dotted, value in overrides.items():
        target = values
        *parents, leaf = dotted.split(".")
        for parent in parents:
            target = target.get(parent, {})
        if leaf not in target:
            raise ConfigurationError(f"learner.{dotted}: unknown key")
        target[leaf] = value
    try:
        section = LearnerSection.model_validate(values)
    except ValidationError as error:
        raise ConfigurationError(f"overrides of the train job: {error}") from error
    check_temperature(section)
    return section


def _retryable(error: BaseException) -> bool:
    return not isinstance(error, InvalidRequest | ConfigurationError | NotFound)


def _for_good(job: Job, error: BaseException) -> bool:
    """Whether nobody will take up the job again."""
    return not _retryable(error) or job.attempts >= job.max_attempts


async def _cancelled(task: asyncio.Task[Any]) -> None:
    if not task.done():
        task.cancel()
    await asyncio.gather(task, return_exceptions=True)
