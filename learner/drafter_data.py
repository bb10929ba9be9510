"""What a draft model is distilled on: token sequences with the positions at which the target spoke.

Sequences come from recorded Turns, token for token as the engine saw and sampled them, or from text that the
target is made to sample where few were recorded.
"""

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from core.turn import Turn
from learner.samples import is_exact


@dataclass(frozen=True)
class DistilSequence:
    """One context with what was said in it."""

    tokens: tuple[int, ...]
    first_output: int
    """Tokens from this index on were sampled: a drafter has to guess those, and never the prompt."""
    domain: str | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.first_output < len(self.tokens):
            raise ValueError(f"first_output is {self.first_output} of {len(self.tokens)} tokens")

    @property
    def outputs(self) -> int:
        """Sampled tokens."""
        return len(self.tokens) - self.first_output


def turn_sequence(turn: Turn, *, domain: str | None = None) -> DistilSequence | None:
    """A recorded Turn as a sequence; None where its ids are not exact, not consented, or it said nothing."""
    if not (turn.trainable and is_exact(turn)) or not turn.output_ids:
        return None
    return DistilSequence((*turn.prompt_ids, *turn.output_ids), len(turn.prompt_ids), domain)


def without_repeats(sequences: Iterable[DistilSequence]) -> list[DistilSequence]:
    """Each sequence once, in order; attempts at the same Task often end alike."""
    return list({sequence.tokens: sequence for sequence in sequences}.values())


def limited(sequences: Sequence[DistilSequence], *, max_outputs: int, longest: int) -> list[DistilSequence]:
    """The first sequences with at most ``max_outputs`` sampled tokens together, each cut to ``longest`` tokens.

    A sequence whose prompt alone is longer is left out: nothing of what it said would remain.
    """
    chosen: list[DistilSequence] = []
    outputs = 0
    for sequence in sequences:
        if sequence.first_output >= longest:
            continue
        kept = DistilSequence(sequence.tokens[:longest], sequence.first_output, sequence.domain)
        if outputs + kept.outputs > max_outputs:
            break
        outputs += kept.outputs
        chosen.append(kept)
    return chosen


def hold_out(
    sequences: Sequence[DistilSequence], *, share: float, seed: int
) -> tuple[list[DistilSequence], list[DistilSequence]]:
    """(training, held out), dealt by prompt: attempts at the same Task are on the same side.

    At least one prompt is on each side where there are two; with one, both sides hold it.
    """
    prompts = list(dict.fromkeys(sequence.tokens[: sequence.first_output] for sequence in sequences))
    random.Random(seed).shuffle(prompts)
    count = max(1, round(len(prompts) * share))
    if count >= len(prompts):
        count = len(prompts) - 1
    if count < 1:
        return list(sequences), list(sequences)
    held = set(prompts[:count])
    sides: tuple[list[DistilSequence], list[DistilSequence]] = ([], [])
    for sequence in sequences:
        sides[sequence.tokens[: sequence.first_output] in held].append(sequence)
    return sides


def batches_of(sequences: Sequence[DistilSequence], *, token_budget: int) -> list[list[int]]:
    """Indices of ``sequences`` in batches whose padded size stays under the budget, longest first.

    A sequence longer than the budget is a batch of its own.
    """
    batches: list[list[int]] = []
    for index in sorted(range(len(sequences)), key=lambda place: (-len(sequences[place].tokens), place)):
        if batches and len(sequences[batches[-1][0]].tokens) * (len(batches[-1]) + 1) <= token_budget:
            batches[-1].append(index)
        else:
            batches.append([index])
    return batches
