"""The two training loops, as lists of named steps."""

import math
from functools import partial
from pathlib import Path

import structlog

from core.errors import Diverged, LearnerError
from core.run import StepMetrics, TrainingRun
from core.task import Task
from learner.alarms import alarms_of, stopping
from learner.batch_feed import BatchFeed
from learner.grpo_batch import GrpoBatch, build_batch
from learner.grpo_mixture import GrpoMixture
from learner.rollouts import Rollouts
from learner.session import STEPS_PER_STATE, TrainingSession
from learner.sft_data import demonstration_samples, load_tokenizer
from learner.step import UpdateMetrics
from learner.task_order import order_of_pass
from store.store import Store

log = structlog.get_logger(__name__)

_PAGE = 1000


async def run_grpo(session: TrainingSession, rollouts: Rollouts, *, shuffle_rewards: bool = False) -> TrainingRun:
    """GRPO until the planned steps are done; every step that learns something publishes a version.

    With ``max_staleness`` >= 1 later batches are sampled by the present version while this one trains. Jobs that
    an interrupted run had asked for stay: the learner that takes over asks for the very same ones. An alarm of
    ``learner.alarms.stop`` ends the run as ``stopped``.
    """
    await session.wait_until_served()
    losses = GrpoMixture(session)
    await losses.open(await demonstrations(session.store, session.run.domains) if losses.imitates else [])
    feed = BatchFeed(session, rollouts)
    await feed.open()
    reason = _stop_reason(session)
    while reason is None and session.step < session.run.planned_steps:
        episodes = await feed.next()
        shuffle_seed = f"{session.run.seed}:{session.step}" if shuffle_rewards else None
        batch = build_batch(episodes.groups, config=session.config, line=session.line, shuffle_seed=shuffle_seed)
        await feed.learn(batch.outcomes)
        shown = {"generate_seconds": episodes.wait_seconds, "steps_ahead": float(feed.ahead)}
        mixture = losses.of_step(batch.samples, () if shuffle_rewards else episodes.groups)
        if not mixture.teaches:
            await session.record_step(_step(session, None, batch, **shown))
            continue
        draft = await session.draft_probe(mixture.samples)
        try:
            update = await losses.update(mixture)
        except Diverged as error:
            if "not_finite" not in session.config.alarms.stop:
                raise
            reason = f"{error.message} (step {session.step + 1})"
            break
        await session.publish(draft, step=_step(session, update, batch, **shown), episode_ids=batch.episode_ids)
        await session.note(swap_seconds=await session.wait_until_served())
        reason = _stop_reason(session)
    if reason is None:
        return await session.finish()
    await rollouts.withdraw()
    return await session.stop(f"{reason}; {session.run.policy}@{session.version} is the newest version kept")


def _stop_reason(session: TrainingSession) -> str | None:
    alarm = stopping(session.run.steps, session.config.alarms)
    return None if alarm is None else f"alarm at step {session.step}: {alarm}"


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


def _step(
    session: TrainingSession, update: UpdateMetrics | None, batch: GrpoBatch | None, **values: float
) -> StepMetrics:
    step = StepMetrics(
        step=session.step + 1,
        version=session.version,
        reward_mean=batch.reward_mean if batch else None,
        success_rate=batch.success_rate if batch else None,
        loss=update.loss if update else 0.0,
        gradient_norm=update.gradient_norm if update else 0.0,
        values={**(batch.values if batch else {}), **(update.values if update else {}), **values},
        domains=batch.domains if batch else {},
    )
    # A step that taught nothing has no norm, KL or entropy to watch.
    alarms = alarms_of(step, session.run.steps, session.config.alarms) if update and batch else ()
    for alarm in alarms:
        log.warning("training_alarm", run=session.run.id, step=step.step, alarm=str(alarm))
    finite = {name: value for name, value in step.values.items() if math.isfinite(value)}
    return step.model_copy(update={"alarms": alarms, "values": finite})
