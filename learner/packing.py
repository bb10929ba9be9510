"""From TrainingSamples to micro-batches under a token budget: rows without padding, or one padded row a sample.

``flat``: a micro-batch is one row in which samples follow one another and common beginnings stand once
(``learner.token_tree``). ``padded``: one sample is one row, right-padded, longest first; it needs nothing of a
model's attention. Both give the same loss and gradient.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from core.errors import LearnerError
from core.sample import TrainingSample
from learner.token_tree import Segment, TreeRow, build_row

Ints = NDArray[np.int64]
Floats = NDArray[np.float32]

_PAIRS_PER_TOKEN = 3_000.0


Layout = Literal["flat", "padded"]


@dataclass(frozen=True)
class MicroBatch:
    """Arrays of shape (rows, width), index t of a row speaking of its token t; padding is on the right, masks 0."""

    tokens: Ints
    positions: Ints
    """How many tokens of its sample come before it; 0 on padding."""
    loss_mask: Ints
    behaviour_logprobs: Floats
    advantages: Floats
    versions: Ints
    """-1 on tokens that no policy sampled and on padding."""
    samples: Ints
    """Which sample a token's loss belongs to, as an index into what was packed."""
    sequence_tokens: Ints
    """Loss tokens of the token's whole Episode, in all micro-batches together; 0 on padding."""
    first_samples: frozenset[int]
    """Samples here that are the first of their Episode with loss tokens: so each Episode is counted once."""
    cost: float
    """What a forward pass over it costs, in arbitrary units."""
    predecessors: Ints | None = None
    """Of a flat row: the index of the token that predicts each one, -1 where nothing does; None: the one before."""
    segments: tuple[Segment, ...] | None = None
    """Of a flat row."""

    @property
    def loss_tokens(self) -> int:
        """Tokens that enter the loss; their sum over all micro-batches of all ranks is the global count."""
        return int(self.loss_mask.sum())


def pack(
    samples: Sequence[TrainingSample],
    *,
    token_budget: int,
    layout: Layout = "flat",
    share_prefixes: bool = True,
    pad_id: int = 0,
) -> list[MicroBatch]:
    """Micro-batches of at most ``token_budget`` tokens (padding included); each sample is in exactly one of them.

    A sample longer than the budget is never cut: it gets a micro-batch of its own. The costliest come first: a batch
    that does not fit in memory fails at once. Raises LearnerError for a budget below 1 or a sample without tokens.
    """
    packer = _Packer.over(samples, layout=layout, share=share_prefixes, pad_id=pad_id)
    return [part.batch for part in packer.parts(token_budget)]


def pack_for_ranks(
    samples: Sequence[TrainingSample],
    *,
    token_budget: int,
    ranks: int,
    layout: Layout = "flat",
    share_prefixes: bool = True,
    pad_id: int = 0,
) -> list[list[MicroBatch]]:
    """``pack``, dealt out to ``ranks`` lists of equal length, as collective operations need, and of like cost.

    The costliest first, each round in the other direction. Where the number does not divide, micro-batches are halved
    if that makes the step shorter; else some ranks end with a micro-batch whose loss mask is 0 everywhere.
    """
    packer = _Packer.over(samples, layout=layout, share=share_prefixes, pad_id=pad_id)
    batches = [part.batch for part in _divided(packer, packer.parts(token_budget), ranks)]
    fill = -len(batches) % ranks
    if fill:
        batches += [_without_loss(batches[-1])] * fill
    dealt: list[list[MicroBatch]] = [[] for _ in range(ranks)]
    for start in range(0, len(batches), ranks):
        turn = batches[start : start + ranks]
        for rank, batch in enumerate(turn if (start // ranks) % 2 == 0 else reversed(turn)):
            dealt[rank].append(batch)
    return dealt


def step_cost(costs: Sequence[float], ranks: int) -> float:
    """What a step of micro-batches of these costs takes on ``ranks`` that wait for one another after each."""
    return sum(sorted(costs, reverse=True)[::ranks])


@dataclass(frozen=True)
class _Part:
    """A micro-batch and the samples that are in it."""

    indices: list[int]
    batch: MicroBatch


def _divided(packer: "_Packer", parts: list[_Part], ranks: int) -> list[_Part]:
    """As many parts as the ranks divide, where halving some makes the step shorter; the costliest first."""
    while len(parts) % ranks:
        costs = [part.batch.cost for part in parts]
        tried = [
            (step_cost([*costs[:at], costs[at] / 2, costs[at] / 2, *costs[at + 1 :]], ranks), at)
            for at, part in enumerate(parts)
            if len(part.indices) > 1
        ]
        if not tried:
            break
        _, at = min(tried)
        indices = parts[at].indices
        half = len(indices) // 2
        halves = [packer.part(indices[:half]), packer.part(indices[half:])]
        changed = sorted([*parts[:at], *halves, *parts[at + 1 :]], key=lambda part: -part.batch.cost)
        if step_cost([part.batch.cost for part in changed], ranks) > step_cost(costs, ranks):
            break
        parts = changed
    return parts


@dataclass(frozen=True)
class _Packer:
    """How samples become micro-batches."""

    chosen: "_Chosen"
    layout: Layout
    share: bool
    pad_id: int

    @classmethod
    def over(cls, samples: Sequence[TrainingSample], *, layout: Layout, share: bool, pad_id: int) -> "_Packer":
        """Counts what holds for all of ``samples``. Raises LearnerError for one without tokens."""
        return cls(chosen=_Chosen.over(samples), layout=layout, share=share, pad_id=pad_id)

    def parts(self, token_budget: int) -> list[_Part]:
        """All samples under the budget, the costliest part first."""
        if token_budget < 1:
            raise LearnerError(f"token_budget is {token_budget}: it must be at least 1")
        samples = self.chosen.samples
        if self.layout == "padded":
            parts = [self.part(rows) for rows in _rows_under(token_budget, samples)]
        else:
            rows_of_trees = _tree_rows_under(token_budget, samples, share=self.share)
            parts = [_Part(row[0], _flat(self.chosen, row)) for row in rows_of_trees]
        return sorted(parts, key=lambda part: -part.batch.cost)

    def part(self, indices: list[int]) -> _Part:
        """One micro-batch of these samples."""
        if self.layout == "padded":
            return _Part(indices, _padded(self.chosen, indices, self.pad_id))
        row = build_row([self.chosen.samples[index] for index in indices], share=self.share)
        return _Part(indices, _flat(self.chosen, (indices, row)))


@dataclass(frozen=True)
class _Chosen:
    """What is packed, and what holds for it over all micro-batches."""

    samples: Sequence[TrainingSample]
    totals: Counter[str]
    first: frozenset[int]

    @classmethod
    def over(cls, samples: Sequence[TrainingSample]) -> "_Chosen":
        """Raises LearnerError for a sample without tokens."""
        totals: Counter[str] = Counter()
        first: dict[str, int] = {}
        for index, sample in enumerate(samples):
            if not sample.tokens:
                raise LearnerError(f"a sample of Episode {sample.episode_id} has no tokens")
            totals[sample.episode_id] += sum(sample.loss_mask)
            if any(sample.loss_mask):
                first.setdefault(sample.episode_id, index)
        return cls(samples, totals, frozenset(first.values()))

    def sequence_tokens(self, sample: int) -> int:
        return self.totals[self.samples[sample].episode_id]


def _rows_under(token_budget: int, samples: Sequence[TrainingSample]) -> Iterator[list[int]]:
    lengths = [len(sample.tokens) for sample in samples]
    rows: list[int] = []
    for row in sorted(range(len(lengths)), key=lambda index: -lengths[index]):
        if rows and lengths[rows[0]] * (len(rows) + 1) > token_budget:
            yield rows
            rows = []
        rows.append(row)
    if rows:
        yield rows


def _tree_rows_under(
    token_budget: int, samples: Sequence[TrainingSample], *, share: bool
) -> Iterator[tuple[list[int], TreeRow]]:
    """Samples of one group follow one another, so that they can share; a row takes as many as fit.

    An estimate that counts what neighbours have in common once decides what is tried.
    """
    order = sorted(range(len(samples)), key=lambda index: (samples[index].group_id or "", samples[index].tokens))
    chosen: list[int] = []
    size = 0
    for index in order:
        tokens = samples[index].tokens
        shared = _shared_length(samples[chosen[-1]], samples[index]) if share and chosen else 0
        if chosen and size + len(tokens) - shared > token_budget:
            yield from _fitting(chosen, samples, token_budget, share=share)
            chosen, size, shared = [], 0, 0
        chosen.append(index)
        size += len(tokens) - shared
    if chosen:
        yield from _fitting(chosen, samples, token_budget, share=share)


def _fitting(
    chosen: list[int], samples: Sequence[TrainingSample], token_budget: int, *, share: bool
) -> Iterator[tuple[list[int], TreeRow]]:
    """The row of ``chosen``, or rows of its halves: samples that learn from one token share less than estimated."""
    row = build_row([samples[one] for one in chosen], share=share)
    if len(row.tokens) <= token_budget or len(chosen) == 1:
        yield chosen, row
        return
    half = len(chosen) // 2
    yield from _fitting(chosen[:half], samples, token_budget, share=share)
    yield from _fitting(chosen[half:], samples, token_budget, share=share)


def _shared_length(one: TrainingSample, other: TrainingSample) -> int:
    """Tokens that both begin with and may share."""
    length = 0
    for a, b, learns, learns_too in zip(one.tokens, other.tokens, one.loss_mask, other.loss_mask, strict=False):
        if a != b or (learns and learns_too):
            break
        length += 1
    return length


def _flat(chosen: _Chosen, row: tuple[list[int], TreeRow]) -> MicroBatch:
    indices, tree = row
    owners = [indices[sample] for sample in tree.samples]

    def taken(values: Callable[[TrainingSample], Sequence[float]], dtype: type) -> NDArray[Any]:
        found = [
            values(chosen.samples[owner])[position] for owner, position in zip(owners, tree.positions, strict=True)
        ]
        return np.asarray([found], dtype=dtype)

    return MicroBatch(
        tokens=np.asarray([tree.tokens], dtype=np.int64),
        positions=np.asarray([tree.positions], dtype=np.int64),
        loss_mask=taken(lambda sample: sample.loss_mask, np.int64),
        behaviour_logprobs=taken(lambda sample: sample.behaviour_logprobs, np.float32),
        advantages=taken(lambda sample: sample.advantages, np.float32),
        versions=taken(lambda sample: sample.versions, np.int64),
        samples=np.asarray([owners], dtype=np.int64),
        sequence_tokens=np.asarray([[chosen.sequence_tokens(owner) for owner in owners]], dtype=np.int64),
        first_samples=chosen.first & frozenset(indices),
        cost=_cost(len(owners), tree.attention_pairs),
        predecessors=np.asarray([tree.predecessors], dtype=np.int64),
        segments=tuple(tree.segments),
    )


def _padded(chosen: _Chosen, rows: Sequence[int], pad_id: int) -> MicroBatch:
    shape = (len(rows), max(len(chosen.samples[row].tokens) for row in rows))
    batch = MicroBatch(
        tokens=np.full(shape, pad_id, dtype=np.int64),
        positions=np.zeros(shape, dtype=np.int64),
        loss_mask=np.zeros(shape, dtype=np.int64),
        behaviour_logprobs=np.zeros(shape, dtype=np.float32),
        advantages=np.zeros(shape, dtype=np.float32),
        versions=np.full(shape, -1, dtype=np.int64),
        samples=np.repeat(np.asarray(rows, dtype=np.int64)[:, None], shape[1], axis=1),
        sequence_tokens=np.zeros(shape, dtype=np.int64),
        first_samples=chosen.first & frozenset(rows),
        cost=_cost(shape[0] * shape[1], shape[0] * shape[1] * (shape[1] + 1) // 2),
    )
    for row, index in enumerate(rows):
        sample = chosen.samples[index]
        length = len(sample.tokens)
        batch.tokens[row, :length] = sample.tokens
        batch.positions[row, :length] = np.arange(length)
        batch.loss_mask[row, :length] = sample.loss_mask
        batch.behaviour_logprobs[row, :length] = sample.behaviour_logprobs
        batch.advantages[row, :length] = sample.advantages
        batch.versions[row, :length] = sample.versions
        batch.sequence_tokens[row, :length] = chosen.sequence_tokens(index)
    return batch


def _cost(tokens: int, pairs: int) -> float:
    """A token's matrices cost as much as attending to some thousands of others, whatever the model's size."""
    return tokens + pairs / _PAIRS_PER_TOKEN


def _without_loss(batch: MicroBatch) -> MicroBatch:
    return replace(
        batch,
        loss_mask=np.zeros_like(batch.loss_mask),
        behaviour_logprobs=np.zeros_like(batch.behaviour_logprobs),
        advantages=np.zeros_like(batch.advantages),
        versions=np.full_like(batch.versions, -1),
        first_samples=frozenset(),
    )
