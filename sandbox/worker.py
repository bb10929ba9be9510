"""Worker: leases jobs of kinds ``rollout``, ``evaluate`` and ``run_suite``, runs them, and reports back.

Several workers on any number of machines share one queue. A worker that is killed loses nothing: its leases
run out and others repeat its jobs. A worker that is stopped gives its jobs back at once.
"""

import asyncio
import secrets
import socket
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import structlog
from prometheus_client import CollectorRegistry
from pydantic import ValidationError

from core.access import hash_key
from core.config.schema import HoneConfig
from core.errors import (
    AuthenticationFailed,
    ConfigurationError,
    Conflict,
    HoneError,
    LeaseLost,
    RateLimited,
    RequestError,
    StoreError,
    TaskError,
)
from core.job import Job
from sandbox.evaluation import EvaluateRequest, Evaluator
from sandbox.janitor import Janitor
from sandbox.metrics import WorkerMetrics
from sandbox.policy_client import PolicyClient
from sandbox.rollout import EpisodeRunner, RolloutRequest
from sandbox.runtimes.base import Runtime
from sandbox.suite_runner import RunSuiteRequest, SuiteRunner
from sandbox.text import clean_text
from store.events import JOBS
from store.store import Store

log = structlog.get_logger(__name__)

ROLLOUT = "rollout"
EVALUATE = "evaluate"
RUN_SUITE = "run_suite"
_POLL_SECONDS = 1.0
_STORE_PAUSE_SECONDS = 1.0
_HEARTBEATS_PER_LEASE = 3
_ERROR_CHARACTERS = 2_000

JobResult = dict[str, Any]


class Worker:
    """Runs jobs, at most ``config.worker.concurrency`` of them and as many Episodes at once."""

    def __init__(
        self,
        *,
        config: HoneConfig,
        store: Store,
        runtime: Runtime,
        gateway_url: str,
        api_key: str,
        registry: CollectorRegistry,
    ) -> None:
        self._config = config.worker
        self._context = config.context
        self._request_timeout_seconds = config.gateway.request_timeout_seconds
        self._store = store
        self._runtime = runtime
        self._gateway_url = gateway_url
        self._api_key = api_key
        self._metrics = WorkerMetrics(registry)
        self._owner = f"{socket.gethostname()}:{secrets.token_hex(4)}"
        self._policy: PolicyClient | None = None
        self._loop: asyncio.Task[None] | None = None
        self._janitor: asyncio.Task[None] | None = None
        self._jobs: set[asyncio.Task[None]] = set()
        self._handlers: dict[str, Callable[[Job], Awaitable[JobResult]]] = {}

    @property
    def owner(self) -> str:
        """The name under which this worker leases jobs."""
        return self._owner

    async def start(self) -> None:
        """Begin to lease jobs. Raises AuthenticationFailed when the store does not know the gateway key."""
        async with self._store.reading() as tx:
            key = await tx.api_keys.by_hash(hash_key(self._api_key))
        if key is None or key.revoked:
            raise AuthenticationFailed("the worker's gateway key is unknown or revoked", param="worker.api_key")
        self._policy = PolicyClient(
            gateway_url=self._gateway_url,
            api_key=self._api_key,
            timeout_seconds=self._request_timeout_seconds,
        )
        runner = EpisodeRunner(
            store=self._store,
            runtime=self._runtime,
            policy=self._policy,
            tenant_id=key.tenant_id,
            metrics=self._metrics,
            concurrency=self._config.concurrency,
            context=self._context,
        )
        evaluator = Evaluator(store=self._store, runner=runner)
        suites = SuiteRunner(store=self._store, runner=runner)
        self._handlers = {
            ROLLOUT: lambda job: _rollout(runner, job),
            EVALUATE: lambda job: _evaluate(evaluator, job),
            RUN_SUITE: lambda job: _run_suite(suites, job),
        }
        self._loop = asyncio.create_task(self._run(), name="worker")
        self._janitor = asyncio.create_task(Janitor(store=self._store).run(), name="janitor")
        log.info("worker_started", owner=self._owner, concurrency=self._config.concurrency)

    async def stop(self) -> None:
        """Stop leasing, give running jobs back, close connections. Stopping twice is fine."""
        if self._loop is not None:
            await _cancelled([self._loop])
            self._loop = None
        if self._janitor is not None:
            await _cancelled([self._janitor])
            self._janitor = None
        await _cancelled(list(self._jobs))
        if self._policy is not None:
            await self._policy.close()
            self._policy = None
            log.info("worker_stopped", owner=self._owner)

    async def _run(self) -> None:
        """Lease jobs while there is room, until cancelled; a store that is away is waited for."""
        while True:
            try:
                async with self._store.events.subscribe([JOBS]) as subscription:
                    while True:
                        free = self._config.concurrency - len(self._jobs)
                        leased = await self._lease(free) if free > 0 else []
                        for job in leased:
                            self._begin(job)
                        if len(leased) < free or free <= 0:
                            # The end of a job of ours is an event too, so room is noticed as well.
                            await subscription.wait(_POLL_SECONDS)
            except Exception:
                log.exception("leasing_failed", owner=self._owner)
                await asyncio.sleep(_STORE_PAUSE_SECONDS)

    async def _lease(self, limit: int) -> list[Job]:
        claim = asyncio.ensure_future(
            self._store.queue.claim(
                tuple(self._handlers), self._owner, lease_seconds=self._config.lease_seconds, limit=limit
            )
        )
        try:
            return await asyncio.shield(claim)
        except asyncio.CancelledError:
            # What was leased while this worker was told to stop goes back at once.
            (leased,) = await asyncio.gather(claim, return_exceptions=True)
            if not isinstance(leased, BaseException):
                for job in leased:
                    await self._give_back(job)
            raise

    def _begin(self, job: Job) -> None:
        task = asyncio.create_task(self._run_job(job), name=job.id)
        self._jobs.add(task)
        self._metrics.jobs_running.inc()
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._jobs.discard(task)
        self._metrics.jobs_running.dec()
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("job_report_failed", job_id=task.get_name(), error=repr(error))

    async def _run_job(self, job: Job) -> None:
        """Run one job under heartbeats and report how it ended; only a failing store escapes."""
        work = asyncio.ensure_future(self._handlers[job.kind](job))
        heart = asyncio.create_task(self._heartbeat(job, work))
        try:
            outcome = await self._report(job, work)
        except asyncio.CancelledError:
            await _cancelled([work])
            await asyncio.shield(self._give_back(job))
            raise
        except LeaseLost:
            outcome = "lease_lost"
            log.warning("lease_lost", job_id=job.id, kind=job.kind)
        finally:
            await _cancelled([heart])
        self._metrics.jobs.labels(job.kind, outcome).inc()

    async def _report(self, job: Job, work: "asyncio.Future[JobResult]") -> str:
        # shield keeps apart the end of this worker (a cancelled waiter) and a lost lease (cancelled work).
        try:
            result = await asyncio.shield(work)
        except asyncio.CancelledError:
            if work.cancelled():
                raise LeaseLost(f"the lease on {job.id} was lost while it ran") from None
            raise
        except Exception as error:  # noqa: BLE001 - whatever ends a job is the job's error, not the worker's
            retryable = _retryable(error)
            log.warning("job_failed", job_id=job.id, kind=job.kind, retryable=retryable, error=repr(error))
            await self._store.queue.fail(job, _describe(error), retryable=retryable)
            return "failed"
        await self._store.queue.complete(job, result)
        return "done"

    async def _heartbeat(self, job: Job, work: "asyncio.Future[JobResult]") -> None:
        """Prolong the lease while the work runs; once it is lost, cancel the work."""
        while True:
            await asyncio.sleep(self._config.lease_seconds / _HEARTBEATS_PER_LEASE)
            try:
                await self._store.queue.heartbeat(job, self._config.lease_seconds)
            except LeaseLost:
                self._metrics.heartbeat_failures.inc()
                work.cancel()
                return
            except StoreError as error:
                self._metrics.heartbeat_failures.inc()
                log.warning("heartbeat_failed", job_id=job.id, error=str(error))

    async def _give_back(self, job: Job) -> None:
        try:
            await self._store.queue.release(job)
        except StoreError as error:  # its lease runs out instead
            log.warning("job_not_released", job_id=job.id, error=str(error))
        self._metrics.jobs.labels(job.kind, "released").inc()


async def _rollout(runner: EpisodeRunner, job: Job) -> JobResult:
    request = _payload(RolloutRequest, job)
    episode = await runner.run_episode(request, job=job)
    return {
        "episode_id": episode.id,
        "reward": episode.reward,
        "success": episode.success,
        "status": episode.status.value,
    }


async def _evaluate(evaluator: Evaluator, job: Job) -> JobResult:
    evaluation = await evaluator.evaluate(_payload(EvaluateRequest, job), job=job)
    return {"evaluation_id": evaluation.id}


async def _run_suite(suites: SuiteRunner, job: Job) -> JobResult:
    result = await suites.run(_payload(RunSuiteRequest, job), job=job)
    return {"suite_result_id": result.id}


def _payload(kind: type[Any], job: Job) -> Any:
    try:
        return kind.model_validate(job.payload)
    except ValidationError as error:
        raise TaskError(f"the payload of {job.id} is malformed: {error}") from error


def _describe(error: BaseException) -> str:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return clean_text(f"{type(error).__name__}: {error}", _ERROR_CHARACTERS)


def _retryable(error: Exception) -> bool:
    """Whether repeating the job may help: not for a wrong request, Task or configuration.

    Conflict covers a version that no replica holds yet; an ExceptionGroup is judged by its parts.
    """
    if isinstance(error, ExceptionGroup):
        return all(_retryable(part) for part in error.exceptions)
    if isinstance(error, Conflict | RateLimited):
        return True
    permanent = (RequestError, TaskError, ConfigurationError)
    return not (isinstance(error, HoneError) and isinstance(error, permanent))


async def _cancelled(tasks: "Sequence[asyncio.Future[Any]]") -> None:
    """Cancel and wait until each has ended; how it ended was reported where it ran."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
