"""From an Episode's Turns to TrainingSamples, token for token as the engine saw and sampled them.

Nothing is tokenised here. A Branch becomes one sample: the first Turn's prompt (mask 0), its output (mask 1),
what the next Turn's prompt adds, such as tool results (mask 0), its output (mask 1), and so on. Each sampled
token lies in exactly one Branch, so with a token-mean loss an Episode that is split into several Branches
weighs as much as the same tokens unsplit; for sequence means, ``MicroBatch.sequence_tokens`` carries the
Episode's total.
"""

import bisect
import math
from collections import Counter
from collections.abc import Mapping, Sequence

from core.episode import Episode, StopReason
from core.errors import LearnerError
from core.sample import TrainingSample
from core.trajectory import NO_BREAKS, Branch, BreakCause, build_trajectory
from core.turn import Turn


def is_exact(turn: Turn) -> bool:
    """Whether the Turn's ids and log-probs are complete, so that its output can be learned from."""
    return (
        turn.exact
        and bool(turn.prompt_ids)
        and len(turn.output_ids) == len(turn.output_logprobs)
        and all(math.isfinite(logprob) for logprob in turn.output_logprobs)
    )


def training_turns(episode: Episode, turns: Sequence[Turn]) -> list[Turn]:
    """The Turns that may train: exact, with consent, named by the Episode, each once.

    A Turn that the Episode does not name is the record of a call whose answer the agent loop never used.
    Raises LearnerError for a Turn of another Episode.
    """
    strangers = [turn.id for turn in turns if turn.episode_id != episode.id]
    if strangers:
        raise LearnerError(f"Turns {strangers} do not belong to Episode {episode.id}")
    named = set(episode.turn_ids)
    once = {turn.id: turn for turn in turns if turn.id in named or not named}
    return [turn for turn in once.values() if turn.trainable and is_exact(turn)]


def episode_samples(
    episode: Episode, turns: Sequence[Turn], advantage: float | Mapping[str, float]
) -> list[TrainingSample]:
    """One TrainingSample per Branch, every sampled token with the Episode's ``advantage``.

    A mapping gives each Turn its own by id; Turns that it lacks are context only.
    A truncated Episode keeps its tokens and has loss mask 0 everywhere. Turns that may not train never enter
    as sampled tokens. Raises LearnerError for a Turn of another Episode or an advantage that is not finite.
    """
    given = advantage.values() if isinstance(advantage, Mapping) else (advantage,)
    if not all(math.isfinite(value) for value in given):
        raise LearnerError(f"the advantage of Episode {episode.id} is {advantage}")
    by_turn = advantage if isinstance(advantage, Mapping) else {turn.id: advantage for turn in turns}
    trajectory = build_trajectory(episode.id, training_turns(episode, turns))
    learns = episode.stop_reason is not StopReason.TRUNCATED
    return [_branch_sample(episode, branch, by_turn if learns else {}) for branch in trajectory.branches]


def count_breaks(episode: Episode, turns: Sequence[Turn]) -> Counter[BreakCause]:
    """Why the Episode fell into several Branches; empty when it did not."""
    branches = build_trajectory(episode.id, training_turns(episode, turns)).branches
    return Counter(branch.cause for branch in branches if branch.cause not in NO_BREAKS)


def token_versions(turn: Turn) -> tuple[int, ...]:
    """The PolicyVersion that sampled each output token."""
    spans = sorted(turn.policy_spans, key=lambda span: span.first_token)
    starts = [span.first_token for span in spans]
    last = [max(bisect.bisect_right(starts, position) - 1, 0) for position in range(len(turn.output_ids))]
    return tuple(spans[index].version for index in last)


def _branch_sample(episode: Episode, branch: Branch, by_turn: Mapping[str, float]) -> TrainingSample:
    tokens: list[int] = []
    mask: list[int] = []
    logprobs: list[float] = []
    versions: list[int] = []
    advantages: list[float] = []
    for turn in branch.turns:
        added, sampled = turn.prompt_ids[len(tokens) :], len(turn.output_ids)
        learns, advantage = turn.id in by_turn, by_turn.get(turn.id, 0.0)
        tokens += (*added, *turn.output_ids)
        mask += [0] * len(added) + [int(learns)] * sampled
        logprobs += (*[0.0] * len(added), *(turn.output_logprobs if learns else [0.0] * sampled))
        advantages += (*[0.0] * len(added), *[advantage] * sampled)
        versions += (*[-1] * len(added), *(token_versions(turn) if learns else [-1] * sampled))
    return TrainingSample(
        episode_id=episode.id,
        group_id=episode.group_id,
        domain=episode.domain,
        tokens=tuple(tokens),
        loss_mask=tuple(mask),
        behaviour_logprobs=tuple(logprobs),
        advantages=tuple(advantages),
        versions=tuple(versions),
    )
