"""Packing keeps every token, mask and path within the budget, in rows of trees and in padded rows."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.errors import LearnerError
from core.sample import TrainingSample
from learner.packing import MicroBatch, pack, pack_for_ranks, step_cost


@st.composite
def training_samples(draw: st.DrawFn) -> TrainingSample:
    """A sample of one of three Episodes and two groups, over so few tokens that samples often begin alike."""
    mask = tuple(draw(st.lists(st.sampled_from((0, 0, 1)), min_size=1, max_size=9)))
    number = draw(st.integers(0, 5))
    return TrainingSample(
        episode_id=f"ep_{number % 3}",
        group_id=f"grp_{number % 2}",
        domain=None,
        tokens=tuple(draw(st.integers(1, 2)) for _ in mask),
        loss_mask=mask,
        behaviour_logprobs=tuple(-0.5 * number * inside for inside in mask),
        advantages=tuple((0.25 + number) * inside for inside in mask),
        versions=tuple(7 if inside else -1 for inside in mask),
    )


sample_lists = st.lists(training_samples(), max_size=10)


def learned(sample: TrainingSample) -> list[tuple[object, ...]]:
    """What is learned of a sample: each loss token with all before it and its values."""
    return [
        (sample.tokens[: t + 1], sample.behaviour_logprobs[t], sample.advantages[t], sample.versions[t])
        for t, inside in enumerate(sample.loss_mask)
        if inside
    ]


def learned_in(batch: MicroBatch) -> list[tuple[int, tuple[object, ...]]]:
    """(sample, what ``learned`` says) of each loss token, its past read off the predecessors."""
    found = []
    for row, index in zip(*np.nonzero(batch.loss_mask), strict=True):
        path, at = [], int(index)
        while at >= 0:
            path.append(int(batch.tokens[row, at]))
            at = at - 1 if batch.predecessors is None else int(batch.predecessors[row, at])
        values = (batch.behaviour_logprobs, batch.advantages, batch.versions)
        numbers = [array[row, index].item() for array in values]
        assert batch.positions[row, index] == len(path) - 1
        found.append((int(batch.samples[row, index]), (tuple(reversed(path)), *numbers)))
    return found


@pytest.mark.parametrize(("layout", "share"), [("flat", True), ("flat", False), ("padded", False)])
@given(samples=sample_lists, budget=st.integers(1, 40))
def test_every_loss_token_is_learned_once_after_its_own_past(layout, share, samples, budget) -> None:
    """Whatever is shared, each loss token stands once, behind exactly the tokens of its sample, with its values."""
    batches = pack(samples, token_budget=budget, layout=layout, share_prefixes=share)
    found = Counter(item for batch in batches for item in learned_in(batch))
    assert found == Counter((index, item) for index, sample in enumerate(samples) for item in learned(sample))


@given(samples=sample_lists, budget=st.integers(1, 40))
def test_segments_cover_a_row_and_see_their_own_past(samples, budget) -> None:
    """Segments follow one another without gaps, and a segment's context is the path that predecessors tell."""
    for batch in pack(samples, token_budget=budget):
        assert batch.segments is not None and batch.predecessors is not None
        assert [one.start for one in batch.segments[1:]] == [one.end for one in batch.segments[:-1]]
        assert batch.segments[-1].end == batch.tokens.shape[1]
        for segment in batch.segments:
            seen = [index for start, end in segment.context for index in range(start, end)]
            path, at = [], int(batch.predecessors[0, segment.start])
            while at >= 0:
                path.append(at)
                at = int(batch.predecessors[0, at])
            assert seen == list(reversed(path))


@given(samples=sample_lists)
def test_sharing_never_costs_and_equal_prompts_stand_once(samples) -> None:
    """A shared row has at most the tokens of the unshared one; a group's common prompt is in it once."""
    together = pack(samples, token_budget=1_000)
    alone = pack(samples, token_budget=1_000, share_prefixes=False)
    assert sum(batch.tokens.size for batch in together) <= sum(batch.tokens.size for batch in alone)
    prompt, answers = (5,) * 20, ((1,), (2, 2), (3, 3, 3))
    group = [
        TrainingSample(
            episode_id=f"ep_{index}",
            group_id="grp",
            domain=None,
            tokens=prompt + answer,
            loss_mask=(0,) * 20 + (1,) * len(answer),
            behaviour_logprobs=(0.0,) * (20 + len(answer)),
            advantages=(0.0,) * (20 + len(answer)),
            versions=(-1,) * (20 + len(answer)),
        )
        for index, answer in enumerate(answers)
    ]
    assert [batch.tokens.size for batch in pack(group, token_budget=100)] == [26]


@pytest.mark.parametrize("layout", ["flat", "padded"])
@given(samples=sample_lists, budget=st.integers(1, 40))
def test_the_budget_holds(layout, samples, budget) -> None:
    """Tokens, padding included, stay within the budget, but for a sample that is longer by itself."""
    for batch in pack(samples, token_budget=budget, layout=layout):
        assert batch.tokens.size <= budget or len(set(batch.samples.flatten())) == 1


def test_samples_that_all_learn_from_a_token_share_less_than_their_neighbours_say() -> None:
    """Between two samples that learn from the same token stands one that does not: the budget holds all the same."""
    learns, listens = (
        TrainingSample(
            episode_id=f"ep_{mask}",
            group_id="grp",
            domain=None,
            tokens=(2,),
            loss_mask=(mask,),
            behaviour_logprobs=(0.0,),
            advantages=(0.0,),
            versions=(-1,),
        )
        for mask in (1, 0)
    )
    batches = pack([learns, listens, learns], token_budget=1)
    assert all(batch.tokens.size == 1 for batch in batches)
    assert sum(batch.loss_tokens for batch in batches) == 2


@given(samples=sample_lists)
def test_padding_is_inert(samples) -> None:
    """Padding holds the pad id, every mask 0 and version -1; positions count from 0 in each row."""
    for batch in pack(samples, token_budget=40, layout="padded", pad_id=77):
        for row, index in enumerate(batch.samples[:, 0]):
            length = len(samples[index].tokens)
            assert (batch.tokens[row, length:] == 77).all()
            assert (batch.versions[row, length:] == -1).all()
            assert batch.positions[row, :length].tolist() == list(range(length))
            for array in (batch.loss_mask, batch.behaviour_logprobs, batch.advantages, batch.positions):
                assert not array[row, length:].any()


@pytest.mark.parametrize("layout", ["flat", "padded"])
@given(samples=sample_lists, budget=st.integers(1, 40))
def test_a_split_episode_counts_once(layout, samples, budget) -> None:
    """A loss token knows its Episode's loss tokens in all batches, and each Episode is counted in one of them."""
    totals: Counter[str] = Counter()
    for sample in samples:
        totals[sample.episode_id] += sum(sample.loss_mask)
    batches = pack(samples, token_budget=budget, layout=layout)
    for batch in batches:
        inside = batch.loss_mask == 1
        expected = [totals[samples[index].episode_id] for index in batch.samples[inside]]
        assert batch.sequence_tokens[inside].tolist() == expected
    assert sum(len(batch.first_samples) for batch in batches) == sum(total > 0 for total in totals.values())


@given(samples=sample_lists, ranks=st.integers(1, 4))
def test_ranks_get_equally_many_batches_and_no_token_twice(samples, ranks) -> None:
    """Every rank runs as many passes as the others, and the loss tokens of all are those of the samples."""
    dealt = pack_for_ranks(samples, token_budget=12, ranks=ranks)
    assert len({len(batches) for batches in dealt}) == 1
    assert sum(batch.loss_tokens for batches in dealt for batch in batches) == sum(
        sum(sample.loss_mask) for sample in samples
    )


@pytest.mark.parametrize("layout", ["flat", "padded"])
@given(samples=sample_lists, ranks=st.integers(2, 4))
def test_halving_makes_no_step_longer_and_loses_nothing(layout, samples, ranks) -> None:
    """Over ranks that wait for one another a step takes at most what it takes with the micro-batches of one rank."""
    whole = [batch.cost for batch in pack(samples, token_budget=12, layout=layout)]
    dealt = pack_for_ranks(samples, token_budget=12, ranks=ranks, layout=layout)
    slots = [max(batch.cost for batch in turn) for turn in zip(*dealt, strict=True)]
    assert sum(slots) <= step_cost(whole, ranks) + 1e-9
    batches = [batch for rank in dealt for batch in rank]
    found = Counter(values for batch in batches for _, values in learned_in(batch))
    assert found == Counter(values for sample in samples for values in learned(sample))
    totals = Counter()
    for sample in samples:
        totals[sample.episode_id] += sum(sample.loss_mask)
    assert sum(len(batch.first_samples) for batch in batches) == sum(total > 0 for total in totals.values())


def test_one_micro_batch_is_halved_for_two_ranks() -> None:
    """No rank idles where samples can be shared out."""
    samples = [
        TrainingSample(
            episode_id=f"ep_{index}",
            group_id="grp_1",
            domain=None,
            tokens=(index + 1,) * 8,
            loss_mask=(0, *(1,) * 7),
            behaviour_logprobs=(0.0, *(-1.0,) * 7),
            advantages=(0.0, *(1.0,) * 7),
            versions=(-1, *(1,) * 7),
        )
        for index in range(4)
    ]
    ((one,), (other,)) = pack_for_ranks(samples, token_budget=100, ranks=2)
    assert one.loss_tokens == other.loss_tokens == 14
    assert step_cost([4.0, 1.0, 1.0], 2) == 5.0
    assert step_cost([2.0, 2.0, 1.0, 1.0], 2) == 3.0


@given(samples=st.lists(training_samples(), min_size=2, max_size=10))
def test_the_costliest_batch_comes_first(samples) -> None:
    """What does not fit in memory fails at once."""
    costs = [batch.cost for batch in pack(samples, token_budget=15)]
    assert costs == sorted(costs, reverse=True)


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
