"""Domain ``letters``: copy, reverse or sort a short string of letters; a dense score per character."""

import random
import string
from collections.abc import Callable

from core.task import Domain, Limits, Split, Task, VerifierSpec, make_task
from sandbox.domains.base import draw_distinct, generator, split_of

NAME = "letters"
SYSTEM_PROMPT = "Answer with letters only."
LIMITS = Limits(max_turns=1, max_tokens=16, wall_seconds=30.0)
LENGTHS = (3, 4, 5)

OPERATIONS: tuple[tuple[str, str, Callable[[str], str]], ...] = (
    ("copy", "Copy: {letters}", lambda letters: letters),
    ("reverse", "Reverse: {letters}", lambda letters: letters[::-1]),
    ("sort", "Sort: {letters}", lambda letters: "".join(sorted(letters))),
)


class LettersDomain:
    """Strings are dealt to the splits by hash; operations take turns."""

    def domain(self) -> Domain:
        """The Domain, as it is registered in the store."""
        return Domain(name=NAME, kind="text", description="Copy, reverse or sort a short string of letters.")

    def generate(self, split: Split, count: int, seed: int) -> list[Task]:
        """``count`` different Tasks; the same for the same arguments."""
        randomness = generator(NAME, split, seed)

        def draw(place: int) -> Task:
            name, question, answer = OPERATIONS[place % len(OPERATIONS)]
            letters = _letters(randomness, split)
            expected = answer(letters)
            return make_task(
                domain=NAME,
                split=split,
                messages=(
                    {"role": "system", "content": SYSTEM_PROMPT},
                    {"role": "user", "content": question.format(letters=letters)},
                ),
                verifiers=(VerifierSpec(name="exact", options={"expected": expected, "dense": True}),),
                limits=LIMITS,
                demonstration=None if split == "heldout" else expected,
                metadata={"operation": name},
            )

        return draw_distinct(NAME, count, draw)


def _letters(randomness: random.Random, split: Split) -> str:
    while True:
        letters = "".join(randomness.choices(string.ascii_lowercase, k=randomness.choice(LENGTHS)))
        if split_of(letters) == split:
            return letters
