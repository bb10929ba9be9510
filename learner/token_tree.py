"""From TrainingSamples to one row of tokens without padding, in which a common beginning stands once.

Samples that begin alike (the prompt of a group, the common past of an Episode's Branches) form a tree: each Segment
is a run of tokens, attends to itself causally and to all tokens of the segments on its path to the root, and to
nothing else. So each token has the hidden state that it would have in a row of its own, and loss and gradient equal
those of the samples laid out singly; only the cost is less.

Source: tree training (arXiv 2511.00413) and AReaL's tree packing, here with exact attention per segment.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from core.errors import LearnerError
from core.sample import TrainingSample

Span = tuple[int, int]
"""First index and the one after the last."""


@dataclass(frozen=True)
class Segment:
    """A run of tokens of the row."""

    start: int
    end: int
    context: tuple[Span, ...]
    """The runs before it on its path, from the root; it sees all their tokens."""

    @property
    def length(self) -> int:
        """Tokens in it."""
        return self.end - self.start

    @property
    def context_length(self) -> int:
        """Tokens before it on its path."""
        return sum(end - start for start, end in self.context)


@dataclass
class TreeRow:
    """One row, as lists over its tokens, in order of the segments."""

    segments: list[Segment] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    """How many tokens come before it on its path."""
    predecessors: list[int] = field(default_factory=list)
    """Index of the token before it on its path: what predicts it; -1 for the first of a root."""
    samples: list[int] = field(default_factory=list)
    """Which sample's loss it belongs to; of shared tokens without loss, any that has it."""

    @property
    def attention_pairs(self) -> int:
        """Pairs of tokens that attend to one another: what attention costs."""
        return sum(one.length * one.context_length + one.length * (one.length + 1) // 2 for one in self.segments)


def build_row(samples: Sequence[TrainingSample], *, share: bool = True) -> TreeRow:
    """All samples in one row. ``share=False``: each stands by itself.

    Two samples share a token only if all before it is shared and at most one of them learns from it.
    Raises LearnerError for a sample without tokens.
    """
    for sample in samples:
        if not sample.tokens:
            raise LearnerError(f"a sample of Episode {sample.episode_id} has no tokens")
    row = TreeRow()
    everyone = list(range(len(samples)))
    for group in _alike(samples, everyone, 0) if share else [[index] for index in everyone]:
        _grow(row, samples, group, 0, (), -1)
    return row


def _grow(
    row: TreeRow,
    samples: Sequence[TrainingSample],
    group: list[int],
    depth: int,
    context: tuple[Span, ...],
    predecessor: int,
) -> None:
    """Add the common run of ``group`` from ``depth`` on, then what follows it, group by group."""
    # A loop for the single sample at the end of most paths; recursion is as deep as prefixes nest.
    end = _common_end(samples, group, depth)
    first = len(row.tokens)
    for position in range(depth, end):
        owner = next((index for index in group if samples[index].loss_mask[position]), group[0])
        row.tokens.append(samples[owner].tokens[position])
        row.positions.append(position)
        row.predecessors.append(predecessor)
        row.samples.append(owner)
        predecessor = len(row.tokens) - 1
    own = (first, len(row.tokens))
    row.segments.append(Segment(start=first, end=own[1], context=context))
    longer = [index for index in group if len(samples[index].tokens) > end]
    for following in _alike(samples, longer, end):
        _grow(row, samples, following, end, (*context, own), predecessor)


def _common_end(samples: Sequence[TrainingSample], group: list[int], depth: int) -> int:
    """Where the tokens that all of ``group`` may share from ``depth`` on end; at least one is shared."""
    shortest = min(len(samples[index].tokens) for index in group)
    if len(group) == 1:
        return shortest
    end = depth + 1
    while end < shortest and len(_alike(samples, group, end)) == 1:
        end += 1
    return end


def _alike(samples: Sequence[TrainingSample], group: list[int], position: int) -> list[list[int]]:
    """``group`` in parts that may share the token at ``position``, in order of their first member."""
    parts: dict[int, list[list[int]]] = {}
    ordered: list[list[int]] = []
    for index in group:
        learns = samples[index].loss_mask[position]
        for part in parts.setdefault(samples[index].tokens[position], []):
            if not (learns and any(samples[other].loss_mask[position] for other in part)):
                part.append(index)
                break
        else:
            part = [index]
            parts[samples[index].tokens[position]].append(part)
            ordered.append(part)
    return ordered
