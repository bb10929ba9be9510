"""A ``distil`` job: from recorded Turns and a target version to a Drafter candidate in the store."""

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

import structlog
from pydantic import ValidationError

from core.config.schema import HoneConfig
from core.distillation import DistilRequest
from core.drafter import Drafter
from core.errors import CorruptArtefact, InvalidRequest, LearnerError
from core.job import Job
from core.policy import Base
from learner.checkpoints import verify_folder
from learner.distill import DistilledDrafter, DistilProgress, distil
from learner.distributed import World
from learner.drafter_data import DistilSequence, turn_sequence
from learner.drafter_target import DraftTarget
from learner.samples import training_turns
from learner.sft_data import load_tokenizer
from serving.weights.folder import base_fingerprint
from store.events import DRAFTERS
from store.store import Store

log = structlog.get_logger(__name__)

T = TypeVar("T")

_PAGE = 200
_MOST_PROMPTS = 1_000
_LOG_SECONDS = 10.0


@dataclass(frozen=True)
class Recorded:
    """What the store holds to distil on."""

    sequences: list[DistilSequence]
    """Of consented Turns, the newest first."""
    messages: list[list[dict[str, object]]]
    """Opening messages of Tasks, where Turns are few: the target answers them."""


async def run_distil(
    job: Job, *, config: HoneConfig, store: Store, world: World, executor: Executor
) -> dict[str, object]:
    """Do the job; its result names the Drafter.

    Raises InvalidRequest for a malformed payload, NotFound, CorruptArtefact, LearnerError, StoreError.
    """
    request = _request_of(job)
    async with store.reading() as work:
        base = await work.bases.get(request.base)
    target = await _target(store, request, base, executor)
    recorded = await _recorded(store, request, config)
    warm_start = await _warm_start(store, request) if config.learner.drafter.warm_start else None
    progress = Progress(request)
    try:
        made = await _in_thread(
            executor,
            lambda: _distil(
                target=target,
                base=base,
                recorded=recorded,
                warm_start=warm_start,
                config=config,
                request=request,
                world=world,
                progress=progress,
            ),
        )
    finally:
        progress.stop()
    drafter = await _register(store, request, made)
    return {"drafter_id": drafter.id, "number": drafter.number, "metrics": made.metrics}


class Progress:
    """Says in the log where the work stands, and ends it once nobody waits for it any more."""

    def __init__(self, request: DistilRequest) -> None:
        self._request = request
        self._stopped = threading.Event()
        self._stage = ""
        self._told_at = 0.0

    def stop(self) -> None:
        """From any thread: the next report raises LearnerError in the working one."""
        self._stopped.set()

    def __call__(self, progress: DistilProgress) -> None:
        """Report. Raises LearnerError after ``stop``."""
        if self._stopped.is_set():
            raise LearnerError("the distillation was called off")
        now = time.monotonic()
        if progress.stage == self._stage and progress.done < progress.total and now - self._told_at < _LOG_SECONDS:
            return
        self._stage, self._told_at = progress.stage, now
        log.info(
            "distilling",
            policy=self._request.policy,
            version=self._request.target_version,
            stage=progress.stage,
            done=progress.done,
            total=progress.total,
            loss=progress.loss,
        )


def _request_of(job: Job) -> DistilRequest:
    try:
        request = DistilRequest.model_validate(job.payload)
    except ValidationError as error:
        raise InvalidRequest(f"the distil job's payload is malformed: {error}") from error
    if request.policy is None and request.target_version != 0:
        raise InvalidRequest("only a Policy has versions beside 0", hint="name the policy")
    return request


async def _target(store: Store, request: DistilRequest, base: Base, executor: Executor) -> DraftTarget:
    path = Path(base.path)
    fingerprint = await _in_thread(executor, partial(base_fingerprint, path))
    if fingerprint != base.fingerprint:
        raise CorruptArtefact(f"the base model in {path} is not the one that was registered")
    if request.policy is None or request.target_version == 0:
        return DraftTarget(path)
    async with store.reading() as work:
        policy = await work.policies.get(request.policy)
        checkpoint = await work.checkpoints.for_version(request.policy, request.target_version)
    if policy.base != base.name or checkpoint.base_fingerprint != base.fingerprint:
        raise InvalidRequest(f"{request.policy}@{request.target_version} is not a version on {base.name}")
    folder = Path(checkpoint.path)
    await _in_thread(executor, partial(verify_folder, folder, checkpoint.checksum))
    return DraftTarget(path, adapter=folder) if checkpoint.kind == "lora" else DraftTarget(folder)


async def _recorded(store: Store, request: DistilRequest, config: HoneConfig) -> Recorded:
    options = config.learner.drafter
    sequences: list[DistilSequence] = []
    outputs = 0
    before = None
    while outputs < options.max_tokens:
        async with store.reading() as work:
            page = await work.episodes.list(policy=request.policy or request.base, limit=_PAGE, before=before)
            for episode in page:
                if not episode.trainable:
                    continue
                for turn in training_turns(episode, await work.turns.for_episode(episode.id)):
                    sequence = turn_sequence(turn, domain=episode.domain)
                    if sequence is not None:
                        sequences.append(sequence)
                        outputs += sequence.outputs
        if len(page) < _PAGE:
            break
        before = page[-1].id
    messages: list[list[dict[str, object]]] = []
    if outputs < options.min_tokens:
        async with store.reading() as work:
            tasks = await work.tasks.list(split="train", limit=_MOST_PROMPTS)
        messages = [[dict(message) for message in task.messages] for task in tasks]
    return Recorded(sequences, messages)


async def _in_thread(executor: Executor, work: Callable[[], T]) -> T:
    return await asyncio.get_running_loop().run_in_executor(executor, work)


async def _warm_start(store: Store, request: DistilRequest) -> Path | None:
    if request.after is None:
        return None
    async with store.reading() as work:
        before = await work.drafters.get(request.after)
    return Path(before.path)


def _distil(
    *,
    target: DraftTarget,
    base: Base,
    recorded: Recorded,
    warm_start: Path | None,
    config: HoneConfig,
    request: DistilRequest,
    world: World,
    progress: Callable[[DistilProgress], None],
) -> DistilledDrafter:
    prompts: list[tuple[int, ...]] = []
    if recorded.messages:
        tokenizer = load_tokenizer(Path(base.path))
        prompts = [
            tuple(tokenizer.apply_chat_template(one, add_generation_prompt=True, tokenize=True, return_dict=False))
            for one in recorded.messages
        ]
    return distil(
        target=target,
        sequences=recorded.sequences,
        root=config.data_dir.expanduser().absolute() / "drafters",
        options=config.learner.drafter,
        seed=request.seed,
        prompts=prompts,
        warm_start=warm_start,
        device=world.device,
        progress=progress,
    )


async def _register(store: Store, request: DistilRequest, made: DistilledDrafter) -> Drafter:
    async with store.transaction() as work:
        drafter = await work.drafters.mint(
            Drafter(
                id=made.id,
                base=request.base,
                policy=request.policy,
                path=str(made.path),
                checksum=made.checksum,
                reason=request.reason,
                target_version=request.target_version,
                metrics=made.metrics,
            )
        )
    await store.events.publish(DRAFTERS, {"drafter": drafter.id})
    log.info("drafter_registered", drafter=drafter.id, number=drafter.number, policy=request.policy)
    return drafter
