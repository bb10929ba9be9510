"""Domain ``json_format``: put the facts of one sentence into a JSON object."""

import json

from core.task import Domain, Limits, Split, Task, VerifierSpec, make_task
from sandbox.domains.base import draw_distinct, generator, pool
from sandbox.domains.words import WORDS

NAME = "json_format"
SYSTEM_PROMPT = "Answer with one JSON object."
LIMITS = Limits(max_turns=1, max_tokens=48, wall_seconds=30.0)
NUMBERS = range(2, 500)
TEMPLATES: tuple[tuple[str, tuple[str, str]], ...] = (
    ('Keys "item" and "price": one {word} costs {number}.', ("item", "price")),
    ('Keys "word" and "count": we saw {word} {number} times.', ("word", "count")),
    ('Keys "name" and "age": {word} is {number} years old.', ("name", "age")),
)


class JsonFormatDomain:
    """Words and numbers are dealt to the splits by hash; templates take turns."""

    def domain(self) -> Domain:
        """The Domain, as it is registered in the store."""
        return Domain(name=NAME, kind="text", description="Put the facts of one sentence into a JSON object.")

    def generate(self, split: Split, count: int, seed: int) -> list[Task]:
        """``count`` different Tasks; the same for the same arguments."""
        randomness = generator(NAME, split, seed)
        words, numbers = pool(WORDS, split), pool(NUMBERS, split)

        def draw(place: int) -> Task:
            question, (text_key, number_key) = TEMPLATES[place % len(TEMPLATES)]
            word, number = randomness.choice(words), randomness.choice(numbers)
            expected = {text_key: word, number_key: number}
            return make_task(
                domain=NAME,
                split=split,
                messages=(
                    {"role": "system", "content": SYSTEM_PROMPT},
                    {"role": "user", "content": question.format(word=word, number=number)},
                ),
                verifiers=(VerifierSpec(name="json_answer", options={"expected": expected}),),
                limits=LIMITS,
                demonstration=None
                if split == "heldout"
                else json.dumps(expected, separators=(",", ":"), ensure_ascii=False),
            )

        return draw_distinct(NAME, count, draw)
