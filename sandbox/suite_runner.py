"""Runs a Suite on one PolicyVersion or Variant: the job of kind ``run_suite``.

Every attempt is written as it ends, under an id that belongs to the job. A job that is repeated reads them first and
makes only those that are missing. The version is pinned while the Suite runs.
"""

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import structlog

from core.episode import Episode, StopReason
from core.errors import HoneError, NotFound, RequestError, TaskError
from core.ids import SUITE_RESULT
from core.job import Job
from core.noun import Noun
from core.perturbation import perturbed
from core.suite import Attempt, Suite, SuiteResult
from core.task import Task
from core.turn import Turn
from core.variant import Variant
from sandbox.rollout import EpisodeRunner, RolloutRequest
from store.held_versions import held
from store.store import Store

log = structlog.get_logger(__name__)

_TRIES = 3


class RunSuiteRequest(Noun):
    """The payload of a job of kind ``run_suite``."""

    suite: str
    policy: str
    version: int
    variant: Variant = Variant.STANDARD
    suite_version: int | None = None
    """None: the newest when the job begins."""


@dataclass(frozen=True)
class Place:
    """One attempt that is to be made."""

    task_id: str
    domain: str
    seed: int
    perturbation: str | None
    run_task_id: str
    """The Task that is run: the perturbed one, where there is a perturbation."""

    @property
    def key(self) -> tuple[str, int, str | None]:
        """As ``Attempt.place``."""
        return self.task_id, self.seed, self.perturbation


class SuiteRunner:
    """Runs Suites and writes SuiteResults."""

    def __init__(self, *, store: Store, runner: EpisodeRunner) -> None:
        self._store = store
        self._runner = runner

    async def run(self, request: RunSuiteRequest, *, job: Job) -> SuiteResult:
        """The finished SuiteResult; the same one however often the job is repeated.

        Raises NotFound for a Suite or Task that is not stored, and TaskError for a Suite without verifiers.
        """
        identity = suite_result_id(job)
        begun = await self._begun(identity)
        if begun is not None and begun.status == "done":
            return begun
        wanted = begun.suite_version if begun is not None else request.suite_version
        async with self._store.reading() as tx:
            suite = await tx.suites.get(request.suite, wanted)
        if not suite.scored:
            raise TaskError(
                f"Suite '{suite.name}' has prompts without verifiers: nothing can be scored",
                hint="use it as shadow or judge prompts, or import Tasks with verifiers",
            )
        places = await self._places(suite)
        result = begun or SuiteResult(
            id=identity,
            suite=suite.name,
            suite_version=suite.version,
            policy=request.policy,
            version=request.version,
            variant=request.variant.value,
            attempts=(),
            status="running",
            planned=len(places),
            job_id=job.id,
            tenant_id=suite.tenant_id,
        )
        made = {attempt.place: attempt for attempt in result.attempts}
        missing = [place for place in places if place.key not in made]
        log.info("suite_begins", suite=suite.name, version=request.version, planned=len(places), missing=len(missing))
        async with held(self._store, request.policy, (request.version,), holder=job.id):
            await self._make(request, suite, missing, made, result, job)
        done = result.model_copy(update={"status": "done", "attempts": _ordered(made.values(), places)})
        await self._write(done)
        return done

    async def _begun(self, identity: str) -> SuiteResult | None:
        try:
            async with self._store.reading() as tx:
                return await tx.suite_results.get(identity)
        except NotFound:
            return None

    async def _places(self, suite: Suite) -> list[Place]:
        """Every attempt of the Suite in its order; perturbed Tasks are stored on the way."""
        places: list[Place] = []
        variants: list[Task] = []
        async with self._store.reading() as tx:
            tasks = [await tx.tasks.get(task_id) for task_id in suite.task_ids]
        for task in tasks:
            runs: list[tuple[str | None, str]] = [(None, task.id)]
            for name in suite.perturbations:
                variant = perturbed(task, name)
                variants.append(variant)
                runs.append((name, variant.id))
            places += [
                Place(task.id, task.domain, suite.seed + attempt, name, run_id)
                for name, run_id in runs
                for attempt in range(suite.attempts)
            ]
        if variants:
            async with self._store.transaction() as tx:
                await tx.tasks.add_many(variants)
        return places

    async def _make(
        self,
        request: RunSuiteRequest,
        suite: Suite,
        missing: Sequence[Place],
        made: dict[tuple[str, int, str | None], Attempt],
        result: SuiteResult,
        job: Job,
    ) -> None:
        writing = asyncio.Lock()

        async def one(place: Place) -> None:
            attempt = await self._attempt(request, suite, place, job)
            async with writing:
                made[place.key] = attempt
                await self._write(result.model_copy(update={"attempts": tuple(made.values())}))

        await self._write(result)
        async with asyncio.TaskGroup() as group:
            for place in missing:
                group.create_task(one(place))

    async def _attempt(self, request: RunSuiteRequest, suite: Suite, place: Place, job: Job) -> Attempt:
        """One attempt, repeated while infrastructure spoils it; marked as invalid when it stays spoiled."""
        rollout = RolloutRequest(
            task_id=place.run_task_id,
            policy=request.policy,
            version=request.version,
            variant=request.variant,
            purpose="evaluate",
            temperature=suite.temperature,
            seed=place.seed,
        )
        for number in range(_TRIES):
            key = f"{place.run_task_id}/{place.seed}:{number}"
            try:
                episode = await self._runner.run_episode(rollout, job=job, key=key)
            except (RequestError, TaskError):
                raise  # repeating would not change it
            except HoneError as error:
                log.warning("attempt_invalid", task_id=place.task_id, version=request.version, error=str(error))
                continue
            async with self._store.reading() as tx:
                turns = await tx.turns.for_episode(episode.id)
            return attempt_of(place, episode, turns)
        return Attempt(
            task_id=place.task_id,
            domain=place.domain,
            seed=place.seed,
            perturbation=place.perturbation,
            invalid=True,
        )

    async def _write(self, result: SuiteResult) -> None:
        async with self._store.transaction() as tx:
            try:
                stored = await tx.suite_results.get(result.id, lock=True)
            except NotFound:
                stored = result
            if stored.status == "done":
                # A later lease of the job has finished it: what this one still made must not undo that.
                return
            await tx.suite_results.put(result)


def suite_result_id(job: Job) -> str:
    """The id of the SuiteResult that a job makes, however often the job is repeated."""
    return f"{SUITE_RESULT}_{job.id.rpartition('_')[2]}"


def attempt_of(place: Place, episode: Episode, turns: Sequence[Turn]) -> Attempt:
    """What a scored Episode and its Turns say about one attempt."""
    errors = sum(result.outcome != "ok" for result in episode.tool_results)
    success = bool(episode.success)
    return Attempt(
        task_id=place.task_id,
        domain=place.domain,
        seed=place.seed,
        perturbation=place.perturbation,
        episode_id=episode.id,
        success=success,
        reward=episode.reward or 0.0,
        turns=len(episode.turn_ids),
        tool_calls=len(episode.tool_results),
        tool_errors=errors,
        recovered=success if errors else None,
        output_tokens=sum(len(turn.output_ids) for turn in turns),
        prompt_tokens=sum(len(turn.prompt_ids) for turn in turns),
        seconds=max(0.0, (episode.finished_at or episode.created_at) - episode.created_at),
        stop_reason=(episode.stop_reason or StopReason.ANSWERED).value,
    )


def _ordered(attempts: Iterable[Attempt], places: Sequence[Place]) -> tuple[Attempt, ...]:
    by_place = {attempt.place: attempt for attempt in attempts}
    return tuple(by_place[place.key] for place in places)
