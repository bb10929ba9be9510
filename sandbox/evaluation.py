"""Evaluation: a PolicyVersion against a baseline on the same held-out Tasks, compared Task by Task.

Runs as a job of kind ``evaluate``. Both sides answer the same Tasks with the same seeds; an Episode that
infrastructure spoiled is repeated, and a Task that stays spoiled on either side is left out of both. The
Evaluation and the step of the Release (candidate → evaluated) are written in one transaction.
"""

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass

import structlog
from pydantic import Field

from core.episode import Episode
from core.errors import HoneError, NotFound, RequestError, TaskError, VerifierError
from core.evaluation import Evaluation
from core.ids import EVALUATION
from core.job import Job
from core.noun import Noun
from core.release import ReleaseStatus, ReleaseStep
from core.statistics.intervals import paired_bootstrap
from core.task import Split
from sandbox.rollout import EpisodeRunner, RolloutRequest
from store.held_versions import held
from store.store import Store
from store.unit_of_work import UnitOfWork

log = structlog.get_logger(__name__)

SPLIT: Split = "heldout"
_TRIES = 3
_MAX_INVALID_SHARE = 0.2


class EvaluateRequest(Noun):
    """The payload of a job of kind ``evaluate``."""

    policy: str
    version: int
    baseline_version: int
    domain: str
    tasks: int = Field(ge=1)
    """How many held-out Tasks; all of them when there are fewer."""
    temperature: float = 0.0
    seed: int = 0


@dataclass(frozen=True)
class Pair:
    """What both sides got on one Task; None where the Episode stayed invalid."""

    task_id: str
    candidate: Episode | None
    baseline: Episode | None


class Evaluator:
    """Runs and writes Evaluations."""

    def __init__(self, *, store: Store, runner: EpisodeRunner) -> None:
        self._store = store
        self._runner = runner

    async def evaluate(self, request: EvaluateRequest, *, job: Job) -> Evaluation:
        """The Evaluation, written. A job that is repeated after it was written gets the same one.

        Raises TaskError when the Domain has no held-out Tasks, and VerifierError when too many Tasks stayed
        invalid for the rest to mean anything.
        """
        identity = evaluation_id(job)
        async with self._store.reading() as tx:
            known = [item for item in await tx.evaluations.list(request.policy, request.version)]
            ids = await tx.tasks.ids(domain=request.domain, split=SPLIT)
        for evaluation in known:
            if evaluation.id == identity:
                return evaluation
        chosen = choose_tasks(ids, request.tasks, request.seed)
        if not chosen:
            raise TaskError(f"Domain '{request.domain}' has no held-out Tasks in the store")
        sides = (request.version, request.baseline_version)
        async with held(self._store, request.policy, sides, holder=job.id):
            pairs = await self._pairs(request, chosen, job)
        evaluation = compare(request, pairs, identity)
        async with self._store.transaction() as tx:
            await tx.evaluations.add(evaluation)
            await _move_release(tx, evaluation)
        return evaluation

    async def _pairs(self, request: EvaluateRequest, task_ids: Sequence[str], job: Job) -> list[Pair]:
        async with asyncio.TaskGroup() as group:
            running = [
                (
                    task_id,
                    group.create_task(self._episode(request, task_id, request.version, job)),
                    group.create_task(self._episode(request, task_id, request.baseline_version, job)),
                )
                for task_id in task_ids
            ]
        return [Pair(task_id, candidate.result(), baseline.result()) for task_id, candidate, baseline in running]

    async def _episode(self, request: EvaluateRequest, task_id: str, version: int, job: Job) -> Episode | None:
        """One side of one Task, repeated while infrastructure spoils it; None when it stays spoiled."""
        rollout = RolloutRequest(
            task_id=task_id,
            policy=request.policy,
            version=version,
            purpose="evaluate",
            temperature=request.temperature,
            seed=request.seed,
        )
        for attempt in range(_TRIES):
            try:
                return await self._runner.run_episode(rollout, job=job, key=f"{task_id}@{version}:{attempt}")
            except (RequestError, TaskError):
                raise  # repeating would not change it
            except HoneError as error:
                log.warning("episode_invalid", task_id=task_id, version=version, error=str(error))
        return None


def evaluation_id(job: Job) -> str:
    """The id of the Evaluation that a job makes, however often the job is repeated."""
    return f"{EVALUATION}_{job.id.rpartition('_')[2]}"


def choose_tasks(task_ids: Sequence[str], count: int, seed: int) -> list[str]:
    """``count`` of the Tasks, the same ones for the same seed whatever order the store gave them in."""
    ordered = sorted(task_ids)
    random.Random(seed).shuffle(ordered)
    return ordered[:count]


def compare(request: EvaluateRequest, pairs: Sequence[Pair], identity: str) -> Evaluation:
    """The paired comparison; raises VerifierError when too few pairs are valid."""
    valid = [(pair.candidate, pair.baseline) for pair in pairs if pair.candidate and pair.baseline]
    invalid = len(pairs) - len(valid)
    if not valid or invalid > _MAX_INVALID_SHARE * len(pairs):
        raise VerifierError(f"{invalid} of {len(pairs)} Tasks stayed invalid: no comparison")
    differences = [float(bool(ours.success)) - float(bool(theirs.success)) for ours, theirs in valid]
    return Evaluation(
        id=identity,
        policy=request.policy,
        version=request.version,
        baseline_version=request.baseline_version,
        domain=request.domain,
        temperature=request.temperature,
        tasks=len(valid),
        success=_mean([float(bool(ours.success)) for ours, _ in valid]),
        baseline_success=_mean([float(bool(theirs.success)) for _, theirs in valid]),
        gain=paired_bootstrap(differences, seed=request.seed),
        reward=_mean([ours.reward or 0.0 for ours, _ in valid]),
        baseline_reward=_mean([theirs.reward or 0.0 for _, theirs in valid]),
        invalid=invalid,
    )


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


async def _move_release(tx: UnitOfWork, evaluation: Evaluation) -> None:
    """Candidate → evaluated, with the Evaluation as evidence; later Releases keep their status."""
    try:
        release = await tx.releases.get(evaluation.policy, evaluation.version)
    except NotFound:
        log.info("evaluated_without_release", policy=evaluation.policy, version=evaluation.version)
        return
    if release.status is not ReleaseStatus.CANDIDATE:
        return
    evidence = release.evidence | {ReleaseStep.EVALUATION.value: evaluation.model_dump(mode="json")}
    await tx.releases.update(release.model_copy(update={"status": ReleaseStatus.EVALUATED, "evidence": evidence}))
