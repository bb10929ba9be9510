"""Packing conserves every token and mask within the budget."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.errors import LearnerError
from core.sample import TrainingSample
from learner.packing import MicroBatch, pack, pack_for_ranks


@st.composite
def training_samples(draw: st.DrawFn) -> TrainingSample:
    """A sample of one of three Episodes, with any mask."""
    mask = tuple(draw(st.lists(st.integers(0, 1), min_size=1, max_size=9)))
    number = draw(st.integers(1, 1000))
    return TrainingSample(
        episode_id=f"ep_{number % 3}",
        group_id=None,
        domain=None,
        tokens=tuple(number + index for index in range(len(mask))),
        loss_mask=mask,
        behaviour_logprobs=tuple(-0.5 * inside for inside in mask),
        advantages=tuple(0.25 * inside for inside in mask),
        versions=tuple(7 if inside else -1 for inside in mask),
    )


def rows_of(batches: list[MicroBatch]) -> list[tuple[int, tuple[object, ...]]]:
    """(index, the sample's arrays) of every row, without the padding."""
    found = []
    for batch in batches:
        for row, index in enumerate(batch.rows):
            kept = batch.attention_mask[row] == 1
            arrays = (
                batch.tokens,
                batch.loss_mask,
                batch.behaviour_logprobs,
                batch.advantages,
                batch.versions,
            )
            found.append((index, tuple(tuple(array[row][kept].tolist()) for array in arrays)))
    return sorted(found)


@given(samples=st.lists(training_samples(), max_size=12), budget=st.integers(1, 40))
def test_every_sample_is_one_row_verbatim(samples, budget) -> None:
    """Unpacking the rows gives back each sample's tokens, masks, log-probs, advantages and versions."""
    expected = [
        (index, (s.tokens, s.loss_mask, s.behaviour_logprobs, s.advantages, s.versions))
        for index, s in enumerate(samples)
    ]
    assert rows_of(pack(samples, token_budget=budget, pad_id=999_999)) == expected


@given(samples=st.lists(training_samples(), max_size=12), budget=st.integers(1, 40))
def test_the_budget_holds(samples, budget) -> None:
    """Padded tokens stay within the budget, but for a row that is longer by itself."""
    for batch in pack(samples, token_budget=budget):
        assert batch.padded_tokens <= budget or len(batch.rows) == 1
        assert batch.attention_mask.max(axis=0).all()


@given(samples=st.lists(training_samples(), max_size=12))
def test_padding_is_inert(samples) -> None:
    """Padding holds the pad id, every mask 0 and version -1; positions count from 0 in each row."""
    for batch in pack(samples, token_budget=40, pad_id=77):
        padding = batch.attention_mask == 0
        assert (batch.tokens[padding] == 77).all()
        assert (batch.versions[padding] == -1).all()
        for array in (batch.loss_mask, batch.behaviour_logprobs, batch.advantages, batch.positions):
            assert not array[padding].any()
        counted = np.broadcast_to(np.arange(batch.tokens.shape[1]), batch.tokens.shape)
        assert (batch.positions[~padding] == counted[~padding]).all()


@given(samples=st.lists(training_samples(), max_size=12), budget=st.integers(1, 40))
def test_sequence_tokens_are_those_of_the_whole_episode(samples, budget) -> None:
    """A row knows its Episode's loss tokens over all rows, so that a split Episode counts once."""
    totals: Counter[str] = Counter()
    for sample in samples:
        totals[sample.episode_id] += sum(sample.loss_mask)
    for batch in pack(samples, token_budget=budget):
        assert batch.sequence_tokens.tolist() == [totals[samples[row].episode_id] for row in batch.rows]


@given(samples=st.lists(training_samples(), max_size=12), ranks=st.integers(1, 4))
def test_ranks_get_equally_many_batches_and_no_token_twice(samples, ranks) -> None:
    """Every rank runs as many passes as the others, and the loss tokens of all are those of the samples."""
    dealt = pack_for_ranks(samples, token_budget=12, ranks=ranks)
    assert len({len(batches) for batches in dealt}) == 1
    assert sum(batch.loss_tokens for batches in dealt for batch in batches) == sum(
        sum(sample.loss_mask) for sample in samples
    )


@given(samples=st.lists(training_samples(), min_size=2, max_size=12))
def test_rows_are_sorted_by_length(samples) -> None:
    """The longest samples come first, equal ones in their given order."""
    order = [row for batch in pack(samples, token_budget=15) for row in batch.rows]
    assert order == sorted(range(len(samples)), key=lambda row: (-len(samples[row].tokens), row))


def test_a_budget_below_one_is_refused() -> None:
    """A senseless budget raises LearnerError."""
    with pytest.raises(LearnerError):
        pack([], token_budget=0)


def test_a_sample_without_tokens_is_refused() -> None:
    """An empty sample raises LearnerError instead of becoming a row of padding."""
    empty = TrainingSample(
        episode_id="ep_1",
        group_id=None,
        domain=None,
        tokens=(),
        loss_mask=(),
        behaviour_logprobs=(),
        advantages=(),
        versions=(),
    )
    with pytest.raises(LearnerError):
        pack([empty], token_budget=8)
