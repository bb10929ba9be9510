"""What goes wrong in long Episodes: forgetting of the goal, repetition, and drift of success by step. Pure."""

from collections import Counter, defaultdict
from collections.abc import Sequence

from core.noun import Noun
from core.statistics.intervals import Interval, wilson_interval


class Step(Noun):
    """One step of a long Episode."""

    text: str
    """What the policy said or called."""
    right: bool
    """The step did what it should."""


class StepShare(Noun):
    """How often a step of one number was right."""

    step: int
    """From 1."""
    episodes: int
    right: Interval


def repetition(steps: Sequence[Step], *, words: int = 4) -> float:
    """Share of word n-grams that occurred earlier in the Episode, in [0, 1]; 0 for shorter texts.

    Source: Welleck et al. (2020), Neural Text Generation with Unlikelihood Training: seq-rep-n.
    """
    grams: list[tuple[str, ...]] = []
    for step in steps:
        tokens = step.text.casefold().split()
        grams += [tuple(tokens[at : at + words]) for at in range(len(tokens) - words + 1)]
    return 1.0 - len(set(grams)) / len(grams) if grams else 0.0


def repeated_steps(steps: Sequence[Step]) -> float:
    """Share of steps that say word for word what an earlier one said."""
    counts = Counter(" ".join(step.text.split()) for step in steps)
    return sum(count - 1 for count in counts.values()) / len(steps) if steps else 0.0


def goal_kept(steps: Sequence[Step], goal_words: Sequence[str]) -> list[float]:
    """Per step, the share of the goal's words that it still names: a fall towards the end is forgetting."""
    goal = {word.casefold() for word in goal_words}
    if not goal:
        return [1.0 for _ in steps]
    return [sum(word in step.text.casefold() for word in goal) / len(goal) for step in steps]


def forgotten_at(steps: Sequence[Step]) -> int | None:
    """The number, from 1, of the step after which none was right; None when the last one is right.

    0: no step was right.
    """
    last = max((number for number, step in enumerate(steps, start=1) if step.right), default=0)
    return None if last == len(steps) else last


def success_by_step(episodes: Sequence[Sequence[Step]]) -> list[StepShare]:
    """For each step number, the share of Episodes that got it right, of those that came so far."""
    seen: dict[int, list[bool]] = defaultdict(list)
    for steps in episodes:
        for number, step in enumerate(steps, start=1):
            seen[number].append(step.right)
    return [
        StepShare(step=number, episodes=len(rights), right=wilson_interval(sum(rights), len(rights)))
        for number, rights in sorted(seen.items())
    ]


def drift(episodes: Sequence[Sequence[Step]]) -> float | None:
    """Change of the share of right steps for each further step: the least-squares slope; None below two numbers.

    Every step of every Episode has the same weight.
    """
    points = [(float(number), float(step.right)) for steps in episodes for number, step in enumerate(steps, start=1)]
    if len({number for number, _ in points}) < 2:
        return None
    mean_x = sum(x for x, _ in points) / len(points)
    mean_y = sum(y for _, y in points) / len(points)
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    return sum((x - mean_x) * (y - mean_y) for x, y in points) / spread
