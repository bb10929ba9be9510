"""The two training loops, as lists of named steps."""

import math
import time
from functools import partial
from pathlib import Path

from core.errors import LearnerError
from core.run import StepMetrics, TrainingRun
from core.task import Task
from learner.grpo_batch import GrpoBatch, build_batch
from learner.rollouts import BatchRequest, Rollouts
from learner.session import STEPS_PER_STATE, TrainingSession
from learner.sft_data import demonstration_samples, load_tokenizer
from learner.step import UpdateMetrics
from learner.task_order import order_of_pass
from store.store import Store

_PAGE = 1000


async def run_grpo(session: TrainingSession, rollouts: Rollouts, *, shuffle_rewards: bool = False) -> TrainingRun:
    """GRPO until the planned steps are done; every step that learns something publishes a version.

    With ``max_staleness`` >= 1 the next batch is sampled by the present version while this one trains. Jobs that
    an interrupted run had asked for stay: the learner that takes over asks for the very same ones.
    """
    await session.wait_until_served()
    ahead: BatchRequest | None = None
    while session.step < session.run.planned_steps:
        request = ahead or await rollouts.request(step=session.step, version=session.version)
        batch, generate_seconds = await _collect(session, rollouts, request, shuffle_rewards)
        ahead = await _request_ahead(session, rollouts)
        # What the next batch is sampled by is needed until then, the version of this batch no longer.
        await session.unpin_all_but(session.version)
        if not batch.samples:
            await session.record_step(_step(session, None, batch, generate_seconds=generate_seconds))
            continue
        draft = await session.draft_probe(batch.samples)
        update = await session.in_thread(partial(session.trainer.grpo_update, batch.samples))
        step = _step(session, update, batch, generate_seconds=generate_seconds)
        await session.publish(draft, step=step, episode_ids=batch.episode_ids)
        await session.note(swap_seconds=await session.wait_until_served())
    return await session.finish()


async def run_sft(session: TrainingSession) -> TrainingRun:
    """SFT on the demonstrations of split ``warmup``; publishes one version, with its last step."""
    tasks = await demonstrations(session.store, session.run.domains)
    tokenizer = await session.in_thread(partial(load_tokenizer, Path(session.base.path)))
    samples = demonstration_samples(tasks, tokenizer)
    steps_per_pass = math.ceil(len(samples) / session.config.sft_batch)
    session.plan(session.run.planned_steps or steps_per_pass * session.config.sft_epochs)
    draft = session.restored_draft or await session.draft_probe(samples)
    while session.step < session.run.planned_steps:
        epoch, position = divmod(session.step, steps_per_pass)
        order = order_of_pass(len(samples), seed=session.run.seed, epoch=epoch)
        first = position * session.config.sft_batch
        chosen = [samples[index] for index in order[first : first + session.config.sft_batch]]
        update = await session.in_thread(partial(session.trainer.sft_update, chosen))
        step = _step(session, update, None)
        if step.step == session.run.planned_steps:
            await session.publish(draft, step=step)
        else:
            saved = step.step % STEPS_PER_STATE == 0
            await session.record_step(step, resumable_with=draft if saved else None)
    # Also when an earlier learner published: what the fleet refuses is no result.
    await session.note(swap_seconds=await session.wait_until_served())
    return await session.finish()


async def demonstrations(store: Store, domains: tuple[str, ...]) -> list[Task]:
    """All Tasks of split ``warmup`` that carry a demonstration. Raises LearnerError when there is none."""
    found: list[Task] = []
    async with store.reading() as work:
        for domain in domains:
            offset = 0
            while page := await work.tasks.list(domain=domain, split="warmup", limit=_PAGE, offset=offset):
                found += [task for task in page if task.demonstration is not None]
                offset += len(page)
    if not found:
        raise LearnerError(f"no demonstration of split 'warmup' in {', '.join(domains)}")
    return found


async def _collect(
    session: TrainingSession, rollouts: Rollouts, request: BatchRequest, shuffle: bool
) -> tuple[GrpoBatch, float]:
    started = time.monotonic()
    groups = await rollouts.collect(request)
    batch = build_batch(
        groups,
        config=session.config,
        line=session.line,
        shuffle_seed=f"{session.run.seed}:{session.step}" if shuffle else None,
    )
    return batch, time.monotonic() - started


async def _request_ahead(session: TrainingSession, rollouts: Rollouts) -> BatchRequest | None:
    following = session.step + 1
    if session.config.max_staleness < 1 or following >= session.run.planned_steps:
        return None
    return await rollouts.request(step=following, version=session.version)


def _step(
    session: TrainingSession, update: UpdateMetrics | None, batch: GrpoBatch | None, **values: float
) -> StepMetrics:
    return StepMetrics(
        step=session.step + 1,
        version=session.version,
        reward_mean=batch.reward_mean if batch else None,
        success_rate=batch.success_rate if batch else None,
        loss=update.loss if update else 0.0,
        gradient_norm=update.gradient_norm if update else 0.0,
        values={**(batch.values if batch else {}), **(update.values if update else {}), **values},
    )
