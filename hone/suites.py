"""Stores Suites and has workers run them, for ``hone eval``."""

import asyncio
from collections.abc import Callable, Sequence

import structlog

from core.errors import InvalidTransition, NotFound, SandboxError
from core.job import JobStatus
from core.suite import Suite, SuiteResult
from sandbox.standard_suites import MadeSuite, standard_suite
from sandbox.suite_runner import suite_result_id
from sandbox.worker import RUN_SUITE
from store.store import Store

log = structlog.get_logger(__name__)

_LOOK_AGAIN_SECONDS = 1.0


async def store_suite(store: Store, made: MadeSuite) -> Suite:
    """Domain, Tasks and Suite in one transaction; the stored Suite. Raises TaskError for contaminated Tasks."""
    async with store.transaction() as work:
        await work.domains.put(made.domain)
        await work.tasks.add_many(made.tasks)
        return await work.suites.put_next(made.suite)


async def found_suite(store: Store, name: str, *, tasks: int) -> Suite:
    """The stored Suite, or Hone's own of this name, stored now."""
    try:
        async with store.reading() as work:
            return await work.suites.get(name)
    except NotFound:
        return await store_suite(store, await asyncio.to_thread(standard_suite, name, tasks=tasks))


async def run_suite(
    store: Store,
    suite: Suite,
    *,
    policy: str,
    version: int,
    variant: str,
    again: bool,
    seconds: float,
    progress: Callable[[int, int], None],
) -> SuiteResult:
    """The result of a version on a Suite: the stored one, or a new one where there is none or ``again`` asks for one.

    Calls ``progress`` with attempts made and planned. Raises SandboxError when the job failed or took too long; its
    attempts are kept then only for the job itself.
    """
    if not again:
        async with store.reading() as work:
            known = await work.suite_results.newest(
                policy, version, suite.name, variant=variant, suite_version=suite.version
            )
        if known is not None:
            return known
    payload = {
        "suite": suite.name,
        "suite_version": suite.version,
        "policy": policy,
        "version": version,
        "variant": variant,
    }
    job = await store.queue.enqueue(RUN_SUITE, payload)
    try:
        async with asyncio.timeout(seconds):
            while True:
                job = await store.queue.get(job.id)
                if job.status is JobStatus.DONE:
                    break
                if job.status in {JobStatus.DEAD, JobStatus.CANCELLED}:
                    raise SandboxError(
                        f"the run_suite job was {job.status}: {job.error}", hint="see the worker's log"
                    )
                await _say(store, suite_result_id(job), progress)
                await asyncio.sleep(_LOOK_AGAIN_SECONDS)
    except TimeoutError as error:
        try:
            await store.queue.cancel(job.id)
        except InvalidTransition:
            log.info("job_ended_meanwhile", job_id=job.id)  # its result is there for the next call
        raise SandboxError(
            f"job {job.id} was not done after {seconds:.0f} s and is cancelled", hint="is 'hone up' running?"
        ) from error
    async with store.reading() as work:
        return await work.suite_results.get(str((job.result or {})["suite_result_id"]))


async def newest_results(
    store: Store, policy: str, version: int, variant: str, suites: Sequence[Suite]
) -> dict[str, SuiteResult]:
    """Suite → the newest result on its newest form, where there is one."""
    found: dict[str, SuiteResult] = {}
    async with store.reading() as work:
        for suite in suites:
            result = await work.suite_results.newest(
                policy, version, suite.name, variant=variant, suite_version=suite.version
            )
            if result is not None:
                found[suite.name] = result
    return found


async def _say(store: Store, result_id: str, progress: Callable[[int, int], None]) -> None:
    try:
        async with store.reading() as work:
            result = await work.suite_results.get(result_id)
    except NotFound:
        return
    progress(len(result.attempts), result.planned)
