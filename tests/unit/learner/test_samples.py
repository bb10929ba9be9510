"""TrainingSamples hold the engine's own tokens, each sampled one exactly once."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.episode import Episode, EpisodeStatus, StopReason
from core.errors import LearnerError
from core.policy import PolicySpan
from core.trajectory import BreakCause
from core.turn import Timing, Turn
from core.variant import Variant
from learner.samples import count_breaks, episode_samples, token_versions


def a_turn(index: int, prompt: tuple[int, ...], output: tuple[int, ...], **fields: object) -> Turn:
    """A trainable exact Turn; its log-prob of token number i is -(index + i / 10)."""
    defaults = {
        "id": f"turn_{index}",
        "episode_id": "ep_1",
        "index": index,
        "tenant_id": "ten_1",
        "policy": "coder",
        "policy_spans": (PolicySpan(version=3),),
        "variant": Variant.STANDARD,
        "deployment_id": "dep_1",
        "prompt_ids": prompt,
        "output_ids": output,
        "output_logprobs": tuple(-(index + i / 10) for i in range(len(output))),
        "timing": Timing(started_at=0, total_seconds=0),
        "request_id": f"req_{index}",
        "trainable": True,
    }
    return Turn.model_validate(defaults | fields)


def an_episode(*turns: Turn, **fields: object) -> Episode:
    """A scored Episode that names these Turns."""
    defaults = {
        "id": "ep_1",
        "tenant_id": "ten_1",
        "status": EpisodeStatus.SCORED,
        "policy": "coder",
        "group_id": "grp_1",
        "domain": "arithmetic",
        "trainable": True,
        "reward": 1.0,
        "turn_ids": tuple(turn.id for turn in turns),
    }
    return Episode.model_validate(defaults | fields)


FIRST = a_turn(0, (1, 2), (3, 4))
SECOND = a_turn(1, (1, 2, 3, 4, 5, 6), (7,))


def test_a_branch_becomes_flat_tokens() -> None:
    """Prompt and tool tokens are masked out, sampled tokens carry mask, log-prob, advantage and version."""
    (sample,) = episode_samples(an_episode(FIRST, SECOND), [SECOND, FIRST], 0.5)
    assert sample.tokens == (1, 2, 3, 4, 5, 6, 7)
    assert sample.loss_mask == (0, 0, 1, 1, 0, 0, 1)
    assert sample.behaviour_logprobs == (0, 0, 0, -0.1, 0, 0, -1)
    assert sample.advantages == (0, 0, 0.5, 0.5, 0, 0, 0.5)
    assert sample.versions == (-1, -1, 3, 3, -1, -1, 3)
    assert (sample.episode_id, sample.group_id, sample.domain) == ("ep_1", "grp_1", "arithmetic")


def test_a_prompt_that_does_not_extend_opens_a_second_sample() -> None:
    """A changed history gives two samples and a counted break, and no sampled token enters the loss twice."""
    parted = a_turn(1, (1, 2, 9, 9), (7,))
    samples = episode_samples(an_episode(FIRST, parted), [FIRST, parted], 0.5)
    assert [sample.tokens for sample in samples] == [(1, 2, 3, 4), (1, 2, 9, 9, 7)]
    assert [sample.loss_mask for sample in samples] == [(0, 0, 1, 1), (0, 0, 0, 0, 1)]
    assert sum(count_breaks(an_episode(FIRST, parted), [FIRST, parted]).values()) == 1


def test_an_unbroken_episode_has_no_breaks() -> None:
    """The first Branch is no break."""
    assert BreakCause.FIRST not in count_breaks(an_episode(FIRST, SECOND), [FIRST, SECOND])


def test_a_truncated_episode_leaves_the_loss() -> None:
    """A truncated Episode keeps its tokens and has mask 0 everywhere."""
    episode = an_episode(FIRST, SECOND, stop_reason=StopReason.TRUNCATED)
    (sample,) = episode_samples(episode, [FIRST, SECOND], 0.5)
    assert sample.tokens == (1, 2, 3, 4, 5, 6, 7)
    assert not any(sample.loss_mask)
    assert not any(sample.advantages)
    assert set(sample.versions) == {-1}


@pytest.mark.parametrize(
    "fields",
    [
        {"exact": False},
        {"trainable": False},
        {"output_logprobs": (-0.1,)},
        {"output_logprobs": (-0.1, float("-inf"))},
        {"prompt_ids": ()},
    ],
)
def test_a_turn_that_may_not_train_is_never_sampled_tokens(fields) -> None:
    """Without consent, ids or finite log-probs a Turn's output is at most context of a later Turn."""
    barred = FIRST.model_copy(update=fields)
    (sample,) = episode_samples(an_episode(FIRST, SECOND), [barred, SECOND], 1.0)
    assert sample.tokens == (1, 2, 3, 4, 5, 6, 7)
    assert sample.loss_mask == (0, 0, 0, 0, 0, 0, 1)
    assert episode_samples(an_episode(FIRST), [barred], 1.0) == []


def test_a_turn_that_the_episode_does_not_name_stays_out() -> None:
    """The record of a repeated call, whose answer was never used, does not train."""
    stray = a_turn(1, (1, 2), (8, 8), id="turn_stray")
    (sample,) = episode_samples(an_episode(FIRST, SECOND), [FIRST, stray, SECOND], 1.0)
    assert sample.tokens == (1, 2, 3, 4, 5, 6, 7)


def test_a_turn_that_is_handed_in_twice_counts_once() -> None:
    """The same Turn twice gives one sample."""
    (sample,) = episode_samples(an_episode(FIRST), [FIRST, FIRST], 1.0)
    assert sample.loss_mask == (0, 0, 1, 1)


def test_a_turn_of_another_episode_is_an_error() -> None:
    """Mixing Episodes raises LearnerError: it would give tokens another attempt's advantage."""
    with pytest.raises(LearnerError):
        episode_samples(an_episode(FIRST), [FIRST.model_copy(update={"episode_id": "ep_2"})], 1.0)


def test_an_advantage_that_is_not_finite_is_an_error() -> None:
    """NaN never reaches a sample."""
    with pytest.raises(LearnerError):
        episode_samples(an_episode(FIRST), [FIRST], float("nan"))


def test_versions_follow_the_spans() -> None:
    """A swap inside a Turn gives its tokens two versions."""
    spans = (PolicySpan(version=5, first_token=2), PolicySpan(version=4, first_token=0))
    turn = a_turn(0, (1,), (2, 3, 4, 5), policy_spans=spans)
    assert token_versions(turn) == (4, 4, 5, 5)


ids = st.lists(st.integers(0, 4), min_size=1, max_size=4).map(tuple)


@st.composite
def conversations(draw: st.DrawFn) -> list[Turn]:
    """Turns that extend the one before, or start anew, with more than one choice now and then."""
    turns: list[Turn] = []
    for index in range(draw(st.integers(1, 6))):
        extends = bool(turns) and draw(st.booleans())
        prompt = (turns[-1].prompt_ids + turns[-1].output_ids if extends else ()) + draw(ids)
        turns.append(a_turn(index, prompt, draw(ids), trainable=draw(st.integers(0, 4)) > 0))
    return turns


@given(turns=conversations())
def test_samples_are_the_engines_own_tokens(turns) -> None:
    """Each sample is some Turn's prompt + output verbatim, and the loss holds each sampled token once."""
    samples = episode_samples(an_episode(*turns), turns, 1.0)
    trained = [turn for turn in turns if turn.trainable]
    assert {sample.tokens for sample in samples} <= {turn.prompt_ids + turn.output_ids for turn in trained}
    sampled = sorted(
        pair
        for sample in samples
        for *pair, inside in zip(sample.tokens, sample.behaviour_logprobs, sample.loss_mask, strict=True)
        if inside
    )
    assert sampled == sorted(
        [token, logprob]
        for turn in trained
        for token, logprob in zip(turn.output_ids, turn.output_logprobs, strict=True)
    )


def test_no_sample_joins_what_was_compacted() -> None:
    """The Turns before and after a compaction are samples of their own, and each sampled token is in one of them."""
    compacted = a_turn(2, (1, 2, 99, 8), (9,), compacted=True, parent_turn_id="turn_1")
    later = a_turn(3, (1, 2, 99, 8, 9, 10), (11,), parent_turn_id="turn_2")
    turns = [FIRST, SECOND, compacted, later]
    samples = episode_samples(an_episode(*turns), turns, 1.0)
    assert [sample.tokens for sample in samples] == [(1, 2, 3, 4, 5, 6, 7), (1, 2, 99, 8, 9, 10, 11)]
    assert [sum(sample.loss_mask) for sample in samples] == [3, 2]
    assert count_breaks(an_episode(*turns), turns) == {BreakCause.COMPACTION: 1}
