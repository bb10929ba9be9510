"""The training loop of learning from live traffic; beside ``learner.train``, which has those of GRPO and SFT."""

import math
from functools import partial
from pathlib import Path

import structlog

from core.errors import Diverged
from core.run import StepMetrics, TrainingRun
from learner.alarms import alarms_of, stopping
from learner.live.feed import LiveFeed
from learner.live.intake import LiveBatch
from learner.session import TrainingSession
from learner.sft_data import load_tokenizer
from learner.step import UpdateMetrics

log = structlog.get_logger(__name__)


async def run_live(session: TrainingSession, *, shuffle_rewards: bool = False) -> TrainingRun:
    """A version per step, until the planned steps are done or what clients said is used up.

    ``planned_steps`` 0: as many steps as there is something to learn from. A run that finds too little ends without
    a version, and what it found waits for the next one. An alarm of ``learner.alarms.stop`` ends it as ``stopped``.
    """
    tokenizer = await session.in_thread(partial(load_tokenizer, Path(session.base.path)))
    feed = LiveFeed(store=session.store, config=session.config.live, run=session.run, tokenizer=tokenizer)
    await feed.open(session.version)
    reason = _alarm(session)
    while reason is None and not _is_done(session):
        seed = f"{session.run.seed}:{session.step}" if shuffle_rewards else None
        batch = await feed.next(shuffle_seed=seed)
        if batch is None:
            break
        if any(any(sample.loss_mask) for sample in batch.mixture.samples):
            reason = await _one_step(session, feed, batch)
        # Else all rewards were alike, or all answers too old: nothing tells good from bad. Later ones may.
    if session.step:
        await session.note(swap_seconds=await session.wait_until_served())
    if reason is not None:
        return await session.stop(f"{reason}; {session.run.policy}@{session.version} is the newest version kept")
    session.plan(session.step)
    return await session.finish()


async def _one_step(session: TrainingSession, feed: LiveFeed, batch: LiveBatch) -> str | None:
    """Train and publish; why the run has to end, if it has to."""
    draft = await session.draft_probe(batch.mixture.samples)
    weights = session.config.live.losses
    try:
        update = await session.in_thread(partial(session.trainer.mixed_update, batch.mixture, weights))
    except Diverged as error:
        if "not_finite" not in session.config.alarms.stop:
            raise
        return f"{error.message} (step {session.step + 1})"
    step = _step(session, update, batch)
    await session.publish(draft, step=step, episode_ids=batch.episode_ids, live=batch.state)
    feed.published(session.version)
    await session.unpin_all_but(session.version)
    return _alarm(session)


def _is_done(session: TrainingSession) -> bool:
    return 0 < session.run.planned_steps <= session.step


def _alarm(session: TrainingSession) -> str | None:
    alarm = stopping(session.run.steps, session.config.alarms)
    return None if alarm is None else f"alarm at step {session.step}: {alarm}"


def _step(session: TrainingSession, update: UpdateMetrics, batch: LiveBatch) -> StepMetrics:
    step = StepMetrics(
        step=session.step + 1,
        version=session.version,
        reward_mean=batch.reward_mean,
        loss=update.loss,
        gradient_norm=update.gradient_norm,
        values={**batch.values, **update.values},
    )
    alarms = alarms_of(step, session.run.steps, session.config.alarms)
    for alarm in alarms:
        log.warning("training_alarm", run=session.run.id, step=step.step, alarm=str(alarm))
    finite = {name: value for name, value in step.values.items() if math.isfinite(value)}
    return step.model_copy(update={"alarms": alarms, "values": finite})
