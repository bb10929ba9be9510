"""Fills ArmOutcomes: from recorded calls, from failed requests, and from rewards and feedback whenever they come.

All of it runs off the request path: with the recorder's writes, in a batched writer, or where feedback is taken.
"""

from dataclasses import dataclass

from core.arm_outcome import ArmOutcome
from core.arm_units import FALLBACK
from core.errors import NotFound
from core.experiment import Assignment, Experiment
from core.feedback import Feedback, FeedbackKind, latest
from core.guardrails import NAN_LOGPROBS
from core.message import Usage
from core.noun import now
from core.turn import Turn
from core.turn_events import request_events
from gateway.capture.record import ArmExposure, CapturedCall
from gateway.inference.notes import NO_NUMBER
from store.unit_of_work import UnitOfWork

_MOST_RECENT = 64
"""Requests of an Episode that are remembered: more than a recorder writes at once."""


@dataclass(frozen=True, slots=True)
class Counted:
    """One request of an Experiment, answered or not."""

    exposure: ArmExposure
    episode_id: str
    request_id: str
    at: float
    """Unix seconds at which it began."""
    events: frozenset[str]
    turn_id: str | None = None
    first_token_seconds: float | None = None
    output_tokens: int = 0
    tenant_id: str | None = None


async def record_exposure(work: UnitOfWork, call: CapturedCall, turns: list[Turn]) -> None:
    """Note what a recorded call says of its Experiment; does nothing for any other call. Safe to repeat."""
    exposure = call.exposure
    if exposure is None:
        return
    experiment = await _experiment(work, exposure.experiment_id)
    if experiment is None:
        return
    events = request_events(_measured(call, turns), experiment.guardrails) | set(call.events)
    if any(mark in payload for payload in call.payloads for mark in NO_NUMBER):
        events.add(NAN_LOGPROBS)
    counted = Counted(
        exposure=exposure,
        episode_id=call.episode_id,
        request_id=call.request_id,
        at=call.started_at,
        events=frozenset(events),
        turn_id=call.turn_ids[0] if call.turn_ids else None,
        first_token_seconds=call.first_token_seconds,
        output_tokens=sum(turn.usage.completion_tokens for turn in turns) or call.completion_tokens,
        tenant_id=call.tenant_id,
    )
    await count_request(work, counted, experiment)


def _measured(call: CapturedCall, turns: list[Turn]) -> list[Turn]:
    """Turns by which an answer's length is judged: without content the engine's count is that of all choices."""
    if call.keeps_content or len(turns) < 2:
        return turns
    # At least one choice is as long as the mean.
    mean = Usage(completion_tokens=call.completion_tokens // len(turns))
    return [turn.model_copy(update={"usage": mean}) for turn in turns]


async def count_request(work: UnitOfWork, counted: Counted, experiment: Experiment | None = None) -> None:
    """Add a request to its Episode's outcome, and its key's Assignment at first use. Safe to repeat."""
    exposure = counted.exposure
    experiment = experiment or await _experiment(work, exposure.experiment_id)
    if experiment is None:
        return
    await work.assignments.add(_assignment(counted))
    outcome = await work.arm_outcomes.find(exposure.experiment_id, counted.episode_id, lock=True)
    if outcome is None:
        await work.arm_outcomes.add_new(await _opened(work, counted, experiment))
        outcome = await work.arm_outcomes.get(exposure.experiment_id, counted.episode_id, lock=True)
    if counted.request_id in outcome.recent:
        return
    answered_by_other = exposure.answered is not None and exposure.answered != outcome.arm
    fell_back = exposure.answered is None and "error" not in counted.events
    events = dict(outcome.events)
    # What happened under another arm is not this one's doing.
    for event in (FALLBACK,) if answered_by_other or fell_back else counted.events:
        events[event] = events.get(event, 0) + 1
    first = outcome.first_token_seconds
    await work.arm_outcomes.put(
        outcome.model_copy(
            update={
                "mixed": outcome.mixed or answered_by_other or fell_back or exposure.arm != outcome.arm,
                "requests": outcome.requests + 1,
                "events": events,
                "first_token_seconds": counted.first_token_seconds if first is None else first,
                "output_tokens": outcome.output_tokens + counted.output_tokens,
                "domain": outcome.domain or exposure.domain,
                "recent": (*outcome.recent, counted.request_id)[-_MOST_RECENT:],
                "updated_at": now(),
            }
        )
    )


async def update_reward(work: UnitOfWork, episode_id: str) -> int:
    """Bring an Episode's outcomes up to what is said of it by now; how many changed."""
    changed = 0
    for known in await work.arm_outcomes.of_episode(episode_id):
        reward = await reward_of(work, episode_id)
        if reward is None or reward == known.reward:
            continue
        outcome = await work.arm_outcomes.get(known.experiment_id, episode_id, lock=True)
        await work.arm_outcomes.put(outcome.model_copy(update={"reward": reward, "updated_at": now()}))
        changed += 1
    return changed


async def reward_of(work: UnitOfWork, episode_id: str) -> float | None:
    """What is said of an Episode, in [0, 1]: by feedback, else by its Reward; None: nothing so far.

    Feedback counts where it is true, false, or a number in [0, 1]: the mean of the latest of each name.
    """
    try:
        episode = await work.episodes.get(episode_id)
    except NotFound:
        return None
    said = latest(await work.feedback.list(episode.tenant_id, episode_id=episode_id)).values()
    scores = [score for score in map(_score, said) if score is not None]
    if scores:
        return sum(scores) / len(scores)
    return None if episode.reward is None else min(1.0, max(0.0, episode.reward))


def _score(feedback: Feedback) -> float | None:
    if feedback.kind is FeedbackKind.BOOLEAN:
        return float(bool(feedback.value))
    if feedback.kind is FeedbackKind.NUMBER and isinstance(feedback.value, int | float):
        # A number of another scale cannot be read without knowing its ends.
        return float(feedback.value) if 0.0 <= feedback.value <= 1.0 else None
    return None


async def _opened(work: UnitOfWork, counted: Counted, experiment: Experiment) -> ArmOutcome:
    exposure = counted.exposure
    return ArmOutcome(
        experiment_id=exposure.experiment_id,
        episode_id=counted.episode_id,
        key=exposure.key,
        arm=exposure.arm,
        stage=exposure.stage,
        domain=exposure.domain,
        reward=await reward_of(work, counted.episode_id),
        covariate=await _covariate(work, exposure.key, experiment),
        created_at=counted.at,
    )


async def _covariate(work: UnitOfWork, key: str, experiment: Experiment) -> float | None:
    """The key's mean reward before the Experiment, as far as earlier Experiments recorded it."""
    if experiment.key == "episode":
        return None
    earlier = await work.arm_outcomes.of_key(key, before=experiment.created_at)
    rewards = [one.reward for one in earlier if one.reward is not None and one.experiment_id != experiment.id]
    return sum(rewards) / len(rewards) if rewards else None


async def _experiment(work: UnitOfWork, experiment_id: str) -> Experiment | None:
    try:
        return await work.experiments.get(experiment_id)
    except NotFound:
        return None


def _assignment(counted: Counted) -> Assignment:
    exposure = counted.exposure
    return Assignment(
        experiment_id=exposure.experiment_id,
        key=exposure.key,
        arm=exposure.arm,
        bucket=exposure.bucket,
        reason=exposure.reason,
        turn_id=counted.turn_id,
        tenant_id=counted.tenant_id,
        stage=exposure.stage,
        created_at=counted.at,
    )
