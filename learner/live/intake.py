"""From Episodes and what was said about them to the Mixture of one optimizer step. Pure but for the tokenizer."""

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import fmean
from typing import Any

from core.config.learner_live import LiveSection
from core.episode import Episode, StopReason
from core.live import LiveState, RewardBaseline
from core.live_signals import (
    LiveSignal,
    Said,
    correction_lesson,
    demonstration_lesson,
    lessons_of,
    preference_lesson,
    read_signal,
)
from core.message import Message
from core.sample import TrainingSample
from core.turn import Turn
from learner.end_of_turn import end_of_turn
from learner.live.quota import tenant_weights
from learner.mixture import Mixture, PreferencePair
from learner.samples import episode_samples, token_versions, training_turns

_CUT_OFF = "length"


class LiveRefusal(StrEnum):
    """Why an Episode, or a part of it, does not train."""

    NO_TURNS = "no_turns"
    """None that is exact, has consent and was answered by this Policy."""
    NO_SIGNAL = "no_signal"
    """Nothing that was said tells good from bad."""
    STALE = "stale"
    """Sampled too many versions ago; no policy gradient."""
    OTHER_LINE = "other_line"
    """Sampled by a version that the learner does not come from; no policy gradient."""
    NO_TEXT = "no_text"
    """A demonstration without text, with calls of tools, or behind a prompt that is too long."""
    NOTHING_NEW = "nothing_new"
    """All that was said has been learned."""
    CHANGED = "changed"
    """It was erased, or something else was said, between being found and being used."""


@dataclass(frozen=True)
class LiveEpisode:
    """An Episode that can teach something."""

    said: Said
    turns: tuple[Turn, ...]
    """Those that may train."""
    signal: LiveSignal
    lessons: Mapping[str, str]
    """What of the signal was not learned yet, with digests; see ``core.live_signals.lessons_of``."""

    @property
    def episode(self) -> Episode:
        """The Episode itself."""
        return self.said.episode


@dataclass(frozen=True)
class Unit:
    """Turns that one reward speaks of."""

    source: LiveEpisode
    turns: tuple[Turn, ...]
    reward: float


@dataclass(frozen=True)
class LiveBatch:
    """What one step trains on."""

    mixture: Mixture
    episode_ids: tuple[str, ...]
    state: LiveState
    """For the version that comes of it."""
    reward_mean: float | None
    values: dict[str, float]


def take(
    said: Said,
    turns: Sequence[Turn],
    *,
    policy: str,
    config: LiveSection,
    learned: Mapping[str, str] | None = None,
) -> LiveEpisode | LiveRefusal:
    """The Episode with what it can teach, or why it cannot. ``learned``: lessons with the digests they had."""
    usable = [turn for turn in training_turns(said.episode, turns) if _answered_by(turn, policy)]
    if not usable:
        return LiveRefusal.NO_TURNS
    signal = read_signal(said, usable, config)
    if not signal.rewards and signal.whole is None and not signal.preferences and not signal.demonstrations:
        return LiveRefusal.NO_SIGNAL
    known = learned or {}
    lessons = lessons_of(said, signal, usable, config)
    fresh = {lesson: digest for lesson, digest in lessons.items() if known.get(lesson) != digest}
    if not fresh:
        return LiveRefusal.NOTHING_NEW
    return LiveEpisode(said=said, turns=tuple(usable), signal=signal, lessons=fresh)


def build_live_batch(
    chosen: Sequence[LiveEpisode],
    *,
    baselines: Mapping[str, RewardBaseline],
    line: Sequence[int],
    config: LiveSection,
    tokenizer: Any,
    shuffle_seed: str | None = None,
) -> LiveBatch:
    """The step's Mixture and the baselines after it.

    ``line``: the PolicyVersions that the run comes from, oldest first. ``shuffle_seed`` deals rewards out anew among
    a Domain's answers and turns preferences around at random: the control run, which must not learn.
    """
    refused: Counter[str] = Counter()
    by_domain: dict[str, list[Unit]] = {}
    for one in chosen:
        units = [unit for unit in _units(one) if _fresh(unit, line, config, refused)]
        by_domain.setdefault(one.episode.domain or config.domain, []).extend(units)
    shuffler = None if shuffle_seed is None else random.Random(shuffle_seed)
    weights = tenant_weights(Counter(one.episode.tenant_id for one in chosen), config.tenant_share)
    after = dict(baselines)
    gains: dict[str, dict[str, float]] = {}
    best: dict[str, dict[str, float]] = {}
    rewards: list[float] = []
    for domain, units in sorted(by_domain.items()):
        values = [unit.reward for unit in units]
        rewards += values
        if shuffler is not None:
            shuffler.shuffle(values)
        before = after.get(domain, RewardBaseline()).model_copy(update={"decay": config.baseline_decay})
        for unit, reward, gain in zip(units, values, before.advantages(values, scale=config.scale), strict=True):
            weight = weights[unit.source.episode.tenant_id]
            _credit(unit, reward, gain, weight=weight, gains=gains, best=best, config=config)
        after[domain] = before.taken(values)
    demonstrations, pairs = _imitated(chosen, config, tokenizer, refused, shuffler)
    mixture = Mixture(
        policy=tuple(_samples(chosen, gains)),
        demonstrations=tuple(demonstrations),
        pairs=tuple(pairs),
        best=tuple(_samples(chosen, best)),
    ).weighed(config.losses)
    trained = {one.episode.id: one.said.digest for one in chosen}
    learned = {lesson: digest for one in chosen for lesson, digest in one.lessons.items()}
    return LiveBatch(
        mixture=mixture,
        episode_ids=tuple(trained),
        state=LiveState(baselines=after, trained=trained, learned=learned),
        reward_mean=fmean(rewards) if rewards else None,
        values={f"refused_{cause}": float(number) for cause, number in refused.items()}
        | {
            "live_episodes": float(len(chosen)),
            "live_tenants": float(len({one.episode.tenant_id for one in chosen})),
            "rewarded": float(len(rewards)),
            "demonstrations": float(len(demonstrations)),
            "preferences": float(len(pairs)),
        },
    )


def _answered_by(turn: Turn, policy: str) -> bool:
    # Version 0 of every Policy is its Base, whatever name it was asked for by.
    return turn.policy == policy or all(span.version == 0 for span in turn.policy_spans)


def _units(one: LiveEpisode) -> list[Unit]:
    own = [
        Unit(source=one, turns=(turn,), reward=one.signal.rewards[turn.id])
        for turn in one.turns
        if turn.id in one.signal.rewards and turn.id in one.lessons
    ]
    rest = tuple(turn for turn in one.turns if turn.id not in one.signal.rewards)
    if one.signal.whole is not None and rest and one.episode.id in one.lessons:
        own.append(Unit(source=one, turns=rest, reward=one.signal.whole))
    return own


def _fresh(unit: Unit, line: Sequence[int], config: LiveSection, refused: Counter[str]) -> bool:
    versions = {version for turn in unit.turns for version in token_versions(turn)}
    if not versions <= set(line):
        refused[LiveRefusal.OTHER_LINE] += 1
        return False
    behind = max((len(line) - 1 - line.index(version) for version in versions), default=0)
    if behind > config.max_staleness:
        refused[LiveRefusal.STALE] += 1
        return False
    return True


def _credit(
    unit: Unit,
    reward: float,
    gain: float,
    *,
    weight: float,
    gains: dict[str, dict[str, float]],
    best: dict[str, dict[str, float]],
    config: LiveSection,
) -> None:
    """Note the advantage of each Turn. One that was cut off leaves the loss and stays in the baseline."""
    limited = min(max(gain, -config.advantage_limit), config.advantage_limit)
    whole = [turn for turn in unit.turns if turn.finish_reason != _CUT_OFF]
    episode_id = unit.source.episode.id
    if limited != 0.0:
        gains.setdefault(episode_id, {}).update({turn.id: limited * weight for turn in whole})
    if gain > 0.0 and reward >= config.losses.rejection_above:
        best.setdefault(episode_id, {}).update({turn.id: 1.0 for turn in whole})


def _samples(chosen: Sequence[LiveEpisode], credits: Mapping[str, Mapping[str, float]]) -> list[TrainingSample]:
    return [
        sample
        for one in chosen
        if one.episode.id in credits
        for sample in episode_samples(one.episode, one.turns, credits[one.episode.id])
        if any(sample.loss_mask)
    ]


def _imitated(
    chosen: Sequence[LiveEpisode],
    config: LiveSection,
    tokenizer: Any,
    refused: Counter[str],
    shuffler: random.Random | None,
) -> tuple[list[TrainingSample], list[PreferencePair]]:
    """Demonstrations, and preferences among answers and for demonstrations."""
    shown: list[TrainingSample] = []
    pairs: list[PreferencePair] = []
    for one in chosen:
        turns = {turn.id: turn for turn in one.turns}
        answers = {turn.id: answer_sample(one.episode, turn) for turn in one.turns if _is_whole(one.episode, turn)}
        for better, worse in one.signal.preferences:
            is_new = preference_lesson(better, worse) in one.lessons
            if is_new and better in answers and worse in answers:
                pairs.append(PreferencePair(chosen=answers[better], rejected=answers[worse]))
        for turn_id, message in one.signal.demonstrations.items():
            is_new, corrects = (name(turn_id) in one.lessons for name in (demonstration_lesson, correction_lesson))
            if not (is_new or corrects):
                continue
            sample = demonstration_sample(one.episode, turns[turn_id], message, tokenizer=tokenizer, config=config)
            if sample is None:
                refused[LiveRefusal.NO_TEXT] += 1
                continue
            if is_new:
                shown.append(sample)
            if corrects and turn_id in answers and answers[turn_id].tokens != sample.tokens:
                pairs.append(PreferencePair(chosen=sample, rejected=answers[turn_id]))
    if shuffler is not None:
        turned = [PreferencePair(chosen=pair.rejected, rejected=pair.chosen) for pair in pairs]
        pairs = [shuffler.choice(both) for both in zip(pairs, turned, strict=True)]
    return shown, pairs


def _is_whole(episode: Episode, turn: Turn) -> bool:
    return turn.finish_reason != _CUT_OFF and episode.stop_reason is not StopReason.TRUNCATED


def answer_sample(episode: Episode, turn: Turn) -> TrainingSample:
    """One Turn's answer behind its prompt, token for token as sampled."""
    return _behind(turn, episode, turn.output_ids, turn.output_logprobs, token_versions(turn))


def demonstration_sample(
    episode: Episode, turn: Turn, message: Message, *, tokenizer: Any, config: LiveSection
) -> TrainingSample | None:
    """The answer as it should have been, behind the very prompt ids that the engine saw; None: it cannot be shown.

    What a call of a tool looks like to the model is the engine's to know: its text alone would teach not to call.
    """
    text = message.get("content")
    if message.get("tool_calls") or not isinstance(text, str) or not text:
        return None
    if len(turn.prompt_ids) > config.sft_prompt_tokens:
        return None
    answer = (*tokenizer.encode(text, add_special_tokens=False), end_of_turn(tokenizer))
    return _behind(turn, episode, answer, (0.0,) * len(answer), (-1,) * len(answer))


def _behind(
    turn: Turn, episode: Episode, answer: tuple[int, ...], logprobs: tuple[float, ...], versions: tuple[int, ...]
) -> TrainingSample:
    prompt = turn.prompt_ids
    return TrainingSample(
        episode_id=episode.id,
        group_id=None,
        domain=episode.domain,
        tokens=(*prompt, *answer),
        loss_mask=(0,) * len(prompt) + (1,) * len(answer),
        behaviour_logprobs=(0.0,) * len(prompt) + logprobs,
        advantages=(0.0,) * len(prompt) + (1.0,) * len(answer),
        versions=(-1,) * len(prompt) + versions,
    )
