"""From TrainingSamples to micro-batches of right-padded rows under a token budget.

One sample is one row: no attention mask beyond the usual one is needed, so every model and attention kernel
gives the same numbers. Rows are sorted by length, longest first: little padding, and a batch that does not
fit in memory fails at once.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from core.errors import LearnerError
from core.sample import TrainingSample

Ints = NDArray[np.int64]
Floats = NDArray[np.float32]


@dataclass(frozen=True)
class MicroBatch:
    """Arrays of shape (rows, width); padding is on the right with every mask 0."""

    tokens: Ints
    attention_mask: Ints
    """1 where there is a token, 0 on padding."""
    positions: Ints
    """0, 1, 2, … in each row; 0 on padding."""
    loss_mask: Ints
    behaviour_logprobs: Floats
    advantages: Floats
    versions: Ints
    """-1 on tokens that no policy sampled and on padding."""
    sequence_tokens: Ints
    """Per row: loss tokens of the row's whole Episode, all its rows in all micro-batches together."""
    first_rows: Ints
    """Per row: 1 where the row is the first of its Episode with loss tokens, else 0."""
    rows: tuple[int, ...]
    """Per row: its index in what was packed."""

    @property
    def padded_tokens(self) -> int:
        """What the forward pass costs."""
        return int(self.tokens.size)

    @property
    def loss_tokens(self) -> int:
        """Tokens that enter the loss; their sum over all micro-batches of all ranks is the global count."""
        return int(self.loss_mask.sum())


def pack(samples: Sequence[TrainingSample], *, token_budget: int, pad_id: int = 0) -> list[MicroBatch]:
    """Micro-batches with rows x width <= ``token_budget``; each sample is one row of exactly one of them.

    A sample longer than the budget is never cut: it gets a micro-batch of its own. Raises LearnerError for a
    budget below 1 or a sample without tokens.
    """
    if token_budget < 1:
        raise LearnerError(f"token_budget is {token_budget}: it must be at least 1")
    totals: Counter[str] = Counter()
    first: dict[str, int] = {}
    for index, sample in enumerate(samples):
        if not sample.tokens:
            raise LearnerError(f"a sample of Episode {sample.episode_id} has no tokens")
        totals[sample.episode_id] += sum(sample.loss_mask)
        if any(sample.loss_mask):
            first.setdefault(sample.episode_id, index)
    return [
        _collate([(row, samples[row]) for row in rows], totals, set(first.values()), pad_id)
        for rows in _rows_under(token_budget, [len(sample.tokens) for sample in samples])
    ]


def pack_for_ranks(
    samples: Sequence[TrainingSample], *, token_budget: int, ranks: int, pad_id: int = 0
) -> list[list[MicroBatch]]:
    """``pack``, dealt out to ``ranks`` lists of equal length, as collective operations need.

    Where the number does not divide, some ranks end with a micro-batch whose loss mask is 0 everywhere.
    """
    batches = pack(samples, token_budget=token_budget, pad_id=pad_id)
    fill = -len(batches) % ranks
    if fill:
        batches += [_without_loss(batches[-1])] * fill
    return [batches[rank::ranks] for rank in range(ranks)]


def _rows_under(token_budget: int, lengths: Sequence[int]) -> Iterator[list[int]]:
    rows: list[int] = []
    for row in sorted(range(len(lengths)), key=lambda index: -lengths[index]):
        if rows and lengths[rows[0]] * (len(rows) + 1) > token_budget:
            yield rows
            rows = []
        rows.append(row)
    if rows:
        yield rows


def _collate(
    rows: Sequence[tuple[int, TrainingSample]], totals: Counter[str], first: Collection[int], pad_id: int
) -> MicroBatch:
    shape = (len(rows), max(len(sample.tokens) for _, sample in rows))
    batch = MicroBatch(
        tokens=np.full(shape, pad_id, dtype=np.int64),
        attention_mask=np.zeros(shape, dtype=np.int64),
        positions=np.zeros(shape, dtype=np.int64),
        loss_mask=np.zeros(shape, dtype=np.int64),
        behaviour_logprobs=np.zeros(shape, dtype=np.float32),
        advantages=np.zeros(shape, dtype=np.float32),
        versions=np.full(shape, -1, dtype=np.int64),
        sequence_tokens=np.array([totals[sample.episode_id] for _, sample in rows], dtype=np.int64),
        first_rows=np.array([index in first for index, _ in rows], dtype=np.int64),
        rows=tuple(index for index, _ in rows),
    )
    for row, (_, sample) in enumerate(rows):
        length = len(sample.tokens)
        batch.tokens[row, :length] = sample.tokens
        batch.attention_mask[row, :length] = 1
        batch.positions[row, :length] = np.arange(length)
        batch.loss_mask[row, :length] = sample.loss_mask
        batch.behaviour_logprobs[row, :length] = sample.behaviour_logprobs
        batch.advantages[row, :length] = sample.advantages
        batch.versions[row, :length] = sample.versions
    return batch


def _without_loss(batch: MicroBatch) -> MicroBatch:
    return replace(
        batch,
        loss_mask=np.zeros_like(batch.loss_mask),
        behaviour_logprobs=np.zeros_like(batch.behaviour_logprobs),
        advantages=np.zeros_like(batch.advantages),
        versions=np.full_like(batch.versions, -1),
        first_rows=np.zeros_like(batch.first_rows),
    )
