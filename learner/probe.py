"""Chooses the Probe of a PolicyVersion: short token sequences on which it differs most from its parent and Base.

Cost matters: every hot-swap makes the engine score the whole Probe, so sequences are short and few.
"""

import random
from collections.abc import Sequence

from core.errors import LearnerError
from core.noun import Noun
from core.policy import Probe, ProbePrompt
from core.sample import TrainingSample

MAX_TOKENS = 14
"""Longest sequence of a Probe."""
PROMPTS = 8
CANDIDATES = 16
POSITIONS = 6
"""Compared tokens per sequence."""


class ProbeDraft(Noun):
    """Candidate sequences with what the parent and the Base say, taken before the parent's weights are gone."""

    sequences: tuple[tuple[int, ...], ...]
    parent: tuple[tuple[float, ...], ...]
    base: tuple[tuple[float, ...], ...]


def candidate_sequences(samples: Sequence[TrainingSample], *, vocabulary: int, seed: int) -> list[tuple[int, ...]]:
    """Windows around the first sampled tokens, filled up with random sequences where samples repeat.

    Half of a window is prompt and half is sampled: there training changes log-probs most.
    """
    windows: dict[tuple[int, ...], None] = {}
    for sample in samples:
        first = sample.loss_mask.index(1) if 1 in sample.loss_mask else 0
        start = max(0, first - MAX_TOKENS // 2)
        window = sample.tokens[start : start + MAX_TOKENS]
        if len(window) > POSITIONS:
            windows.setdefault(window)
        if len(windows) == CANDIDATES:
            break
    generator = random.Random(seed)
    while len(windows) < PROMPTS:
        windows.setdefault(tuple(generator.randrange(vocabulary) for _ in range(MAX_TOKENS // 2)))
    return list(windows)


def choose_probe(draft: ProbeDraft, version: Sequence[Sequence[float]], *, dtype: str) -> Probe:
    """The sequences and positions of the draft where the version is farthest from both parent and Base.

    Distance is the smaller of |version - parent| and |version - Base|, so that no compared token confuses the
    version with either; where the parent is the Base both are the same. Raises LearnerError for a thin draft.
    """
    if len(draft.sequences) < PROMPTS:
        raise LearnerError(f"a Probe needs {PROMPTS} sequences, and only {len(draft.sequences)} are there")
    scored: list[tuple[float, ProbePrompt]] = []
    for tokens, own, parent, base in zip(draft.sequences, version, draft.parent, draft.base, strict=True):
        distance = [
            min(abs(mine - theirs), abs(mine - plain)) for mine, theirs, plain in zip(own, parent, base, strict=True)
        ]
        # The first token has nothing before it, so no engine gives it a log-prob.
        ranked = sorted(range(1, len(tokens)), key=lambda index: -distance[index])[:POSITIONS]
        positions = tuple(sorted(ranked))
        prompt = ProbePrompt(
            token_ids=tokens,
            positions=positions,
            version_logprobs=tuple(own[index] for index in positions),
            parent_logprobs=tuple(parent[index] for index in positions),
            base_logprobs=tuple(base[index] for index in positions),
        )
        scored.append((sum(distance[index] for index in positions) / len(positions), prompt))
    scored.sort(key=lambda item: -item[0])
    return Probe(prompts=tuple(prompt for _, prompt in scored[:PROMPTS]), dtype=dtype)
