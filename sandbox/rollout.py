"""Rollout: sampling one Episode, from the first message to its Verdicts and Reward in the store.

``EpisodeRunner.run_episode`` creates the Episode, runs the agent loop, waits until every Turn is durable,
has the attempt judged, and writes Verdicts, Reward and status in one transaction. If infrastructure fails on
the way, the Episode becomes ``invalid`` and the error rises, so that the job can be repeated. A repeated
job makes a new Episode, and ends what its earlier attempts left unfinished.
"""

import asyncio
import hashlib
import time
from collections.abc import Sequence
from typing import Literal

from core.config.gateway import ContextBudget, ContextSection
from core.episode import EPISODE_TRANSITIONS, Episode, EpisodeStatus, StopReason
from core.errors import NotFound, StoreError, VerifierError
from core.ids import EPISODE
from core.job import Job
from core.noun import Noun, now
from core.task import Task
from core.variant import ModelName, Variant
from core.verdict import Reward, Verdict, VerdictStatus, combine_verdicts
from sandbox.agent import Agent, Conversation, Sampling, episode_seed
from sandbox.judge import judge_attempt, make_verifiers
from sandbox.metrics import WorkerMetrics
from sandbox.policy_client import PolicyClient
from sandbox.runtimes.base import Runtime
from sandbox.text import clean_text
from sandbox.tools.registry import make_tools
from sandbox.verifiers.base import Attempt
from store.events import TURNS
from store.store import Store

_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
_POLL_SECONDS = 0.5
_ERROR_CHARACTERS = 2_000


class RolloutRequest(Noun):
    """The payload of a job of kind ``rollout``."""

    task_id: str
    policy: str
    version: int
    variant: Variant = Variant.STANDARD
    group_id: str | None = None
    attempt: int = 0
    purpose: Literal["train", "evaluate"] = "train"
    temperature: float = 1.0
    seed: int = 0
    run_id: str | None = None

    @property
    def model(self) -> str:
        """The pinned name in the OpenAI API."""
        return str(ModelName(name=self.policy, variant=self.variant, version=self.version))


class EpisodeRunner:
    """Runs Episodes, at most ``concurrency`` at once."""

    def __init__(
        self,
        *,
        store: Store,
        runtime: Runtime,
        policy: PolicyClient,
        tenant_id: str,
        metrics: WorkerMetrics,
        concurrency: int,
        durable_seconds: float = 60.0,
        context: ContextSection | None = None,
    ) -> None:
        self._store = store
        self._runtime = runtime
        self._policy = policy
        self._tenant_id = tenant_id
        self._metrics = metrics
        self._slots = asyncio.Semaphore(concurrency)
        self._durable_seconds = durable_seconds
        self._context = context or ContextSection()

    async def run_episode(self, request: RolloutRequest, *, job: Job, key: str = "") -> Episode:
        """The scored Episode of ``request``; ``key`` tells apart the Episodes of one job.

        If an earlier attempt of the job got as far as scoring, that Episode is returned. Raises what made the
        Episode invalid: EngineError, SandboxError, VerifierError, StoreError, TaskError.
        """
        async with self._slots:
            earlier = await self._settle_earlier(job, key)
            if earlier is not None:
                return earlier
            async with self._store.transaction() as tx:
                task = await tx.tasks.get(request.task_id)
                episode = self._new_episode(request, task, job, key)
                await tx.episodes.add(episode)
            started = time.monotonic()
            ended = await self._live(episode, request, task)
            self._metrics.episode_seconds.observe(time.monotonic() - started)
            return ended

    def _new_episode(self, request: RolloutRequest, task: Task, job: Job, key: str) -> Episode:
        return Episode(
            id=episode_id(job.id, key, job.token),
            tenant_id=self._tenant_id,
            task_id=task.id,
            domain=task.domain,
            group_id=request.group_id,
            policy=request.policy,
            version=request.version,
            purpose=request.purpose,
            trainable=request.purpose == "train",
            metadata={
                "job_id": job.id,
                "attempt": request.attempt,
                "run_id": request.run_id,
                "variant": request.variant.value,
            },
        )

    async def _live(self, episode: Episode, request: RolloutRequest, task: Task) -> Episode:
        conversation = Conversation(episode_id=episode.id, messages=list(task.messages))
        try:
            return await self._attempt(episode, request, task, conversation)
        except asyncio.CancelledError:
            # The job goes to another worker, which would expire the Episode too; doing it now says why.
            await asyncio.shield(self._abandon(episode.id, conversation, "the worker stopped"))
            raise
        except Exception as error:
            await self._abandon(
                episode.id, conversation, f"{type(error).__name__}: {error}", StopReason.INFRASTRUCTURE
            )
            raise

    async def _attempt(
        self, episode: Episode, request: RolloutRequest, task: Task, conversation: Conversation
    ) -> Episode:
        verifiers = make_verifiers(task, self._runtime, self._policy)
        wanted = tuple(dict.fromkeys(path for verifier in verifiers for path in verifier.wanted_files))
        agent = Agent(
            task=task,
            policy=self._policy,
            sampling=_sampling(request, episode, self._context.budget_of(request.policy)),
            runtime=self._runtime,
            tools=make_tools(task.tools),
        )
        await agent.converse(conversation, wanted)
        await self._wait_durable(conversation.turn_ids)
        finished = episode.model_copy(update=_finish(conversation, EpisodeStatus.FINISHED))
        async with self._store.transaction() as tx:
            await tx.episodes.update(finished)
        verdicts = await judge_attempt(_attempt_record(finished, task, conversation), verifiers)
        return await self._write_outcome(finished, verdicts)

    async def _wait_durable(self, turn_ids: Sequence[str]) -> None:
        """Wait until the gateway has written every Turn; raises StoreError when it takes too long."""
        wanted = set(turn_ids)
        deadline = time.monotonic() + self._durable_seconds
        async with self._store.events.subscribe([TURNS]) as subscription:
            while True:
                async with self._store.reading() as tx:
                    missing = wanted - await tx.turns.existing(sorted(wanted))
                if not missing:
                    return
                if time.monotonic() >= deadline:
                    raise StoreError(
                        f"{len(missing)} of {len(wanted)} Turns not durable after {self._durable_seconds} s"
                    )
                await subscription.wait(_POLL_SECONDS)

    async def _write_outcome(self, episode: Episode, verdicts: list[Verdict]) -> Episode:
        """Verdicts, Reward and the Episode's last status, together or not at all."""
        reward = combine_verdicts(episode.id, verdicts)
        ended = _scored(episode, reward) if reward else _voided(episode, verdicts)
        async with self._store.transaction() as tx:
            await tx.verdicts.add_many(verdicts)
            if reward:
                await tx.rewards.put(reward)
            await tx.episodes.update(ended)
        for verdict in verdicts:
            self._metrics.verdicts.labels(verdict.verifier, verdict.status).inc()
        self._metrics.episodes.labels(ended.status, str(ended.stop_reason)).inc()
        if reward is None:
            raise VerifierError(f"Episode {episode.id} could not be judged: {ended.error}")
        return ended

    async def _settle_earlier(self, job: Job, key: str) -> Episode | None:
        """End what earlier leases of ``job`` left open; the Episode that one of them scored, if any."""
        for token in range(1, job.token):
            try:
                async with self._store.reading() as tx:
                    found = await tx.episodes.get(episode_id(job.id, key, token))
            except NotFound:
                continue
            if found.status is EpisodeStatus.SCORED:
                return found
            if not EPISODE_TRANSITIONS.is_terminal(found.status):
                await self._abandon(found.id, None, f"a worker lost job {job.id}")
        return None

    async def _abandon(
        self,
        identity: str,
        conversation: Conversation | None,
        error: str,
        stop_reason: StopReason | None = None,
    ) -> None:
        """End an unfinished Episode: ``expired`` if it was given up, ``invalid`` if something failed."""
        async with self._store.transaction() as tx:
            stored = await tx.episodes.get(identity, lock=True)
            if EPISODE_TRANSITIONS.is_terminal(stored.status):
                return
            given_up = stop_reason is None and stored.status is EpisodeStatus.RUNNING
            status = EpisodeStatus.EXPIRED if given_up else EpisodeStatus.INVALID
            update: dict[str, object] = {
                "status": status,
                "stop_reason": stop_reason or stored.stop_reason,
                "error": clean_text(error, _ERROR_CHARACTERS),
                "finished_at": now(),
            }
            if conversation is not None:
                update["turn_ids"] = tuple(conversation.turn_ids)
                update["tool_results"] = tuple(conversation.tool_results)
            await tx.episodes.update(stored.model_copy(update=update))
        self._metrics.episodes.labels(status, str(stop_reason)).inc()


def episode_id(job_id: str, key: str, token: int) -> str:
    """The id of the Episode that one lease of a job makes: known to the job's later leases without a search.

    It has the shape of ``core.ids.new_id``: the job's time, so that ids sort, then a hash in place of
    randomness.
    """
    digest = hashlib.sha256(f"{job_id}:{key}:{token}".encode()).digest()
    tail = "".join(_ALPHABET[byte & 31] for byte in digest[:16])
    return f"{EPISODE}_{job_id.rpartition('_')[2][:10]:0<10}{tail}"


def _sampling(request: RolloutRequest, episode: Episode, budget: ContextBudget | None) -> Sampling:
    return Sampling(
        model=request.model,
        version=request.version,
        temperature=request.temperature,
        seed=episode_seed(request.seed, request.task_id, request.attempt),
        trainable=episode.trainable,
        budget=budget,
    )


def _finish(conversation: Conversation, status: EpisodeStatus) -> dict[str, object]:
    return {
        "status": status,
        "stop_reason": conversation.stop_reason,
        "turn_ids": tuple(conversation.turn_ids),
        "tool_results": tuple(conversation.tool_results),
        "finished_at": now(),
    }


def _attempt_record(episode: Episode, task: Task, conversation: Conversation) -> Attempt:
    return Attempt(
        episode_id=episode.id,
        task=task,
        messages=tuple(conversation.messages),
        responses=tuple(conversation.responses),
        tool_results=episode.tool_results,
        stop_reason=episode.stop_reason or StopReason.ANSWERED,
        files=conversation.files,
    )


def _scored(episode: Episode, reward: Reward) -> Episode:
    return episode.model_copy(
        update={"status": EpisodeStatus.SCORED, "reward": reward.value, "success": reward.success}
    )


def _voided(episode: Episode, verdicts: Sequence[Verdict]) -> Episode:
    reasons = [
        f"{verdict.verifier}: {verdict.evidence.get('error', 'invalid')}"
        for verdict in verdicts
        if verdict.status is VerdictStatus.INVALID
    ]
    error = "; ".join(reasons) or "the Task's verifiers give no Reward"
    return episode.model_copy(
        update={
            "status": EpisodeStatus.INVALID,
            "stop_reason": StopReason.INFRASTRUCTURE,
            "error": clean_text(error, _ERROR_CHARACTERS),
        }
    )
