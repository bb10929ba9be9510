"""Domain ``code``: write a short Python function; unit tests judge it in a sandbox box.

What each test expects is computed here and kept on the trusted side: the box only ever sees arguments.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from core.task import Domain, Limits, Split, Task, VerifierSpec, make_task
from sandbox.domains.base import draw_distinct, generator, pool

NAME = "code"
SYSTEM_PROMPT = "Answer with Python code only."
FUNCTION = "f"
LIMITS = Limits(max_turns=1, max_tokens=64, wall_seconds=60.0, tool_seconds=3.0, memory_mib=128)
NUMBERS = range(2, 200)
TESTS_PER_TASK = 5


@dataclass(frozen=True)
class Template:
    """A function to write: in words, in Python, and as the reference that gives the expected results."""

    name: str
    description: str
    body: str
    reference: Callable[[Any, int], Any]
    argument: Callable[[random.Random, int], Any]
    """An argument for one test, given the Task's number."""


def _integer(randomness: random.Random, number: int) -> int:
    return randomness.choice((number, number + 1, number * 3, randomness.randint(-300, 300)))


def _integers(randomness: random.Random, number: int) -> list[int]:
    around = (number, number - 1, number + 1)
    return [randomness.choice((*around, randomness.randint(-300, 300))) for _ in range(randomness.randint(0, 6))]


TEMPLATES: tuple[Template, ...] = (
    Template("add", "returns x plus {n}", "x + {n}", lambda x, n: x + n, _integer),
    Template("multiply", "returns x times {n}", "x * {n}", lambda x, n: x * n, _integer),
    Template("remainder", "returns the remainder of x divided by {n}", "x % {n}", lambda x, n: x % n, _integer),
    Template("above", "returns True if x is greater than {n}, else False", "x > {n}", lambda x, n: x > n, _integer),
    Template(
        "distance",
        "returns the absolute difference of x and {n}",
        "abs(x - {n})",
        lambda x, n: abs(x - n),
        _integer,
    ),
    Template(
        "keep_below",
        "returns the list of the numbers in the list x that are less than {n}",
        "[y for y in x if y < {n}]",
        lambda x, n: [y for y in x if y < n],
        _integers,
    ),
    Template(
        "count",
        "returns how many times {n} occurs in the list x",
        "x.count({n})",
        lambda x, n: x.count(n),
        _integers,
    ),
    Template(
        "add_to_sum",
        "returns the sum of the list x plus {n}",
        "sum(x) + {n}",
        lambda x, n: sum(x) + n,
        _integers,
    ),
)


class CodeDomain:
    """Numbers are dealt to the splits by hash; templates take turns."""

    def domain(self) -> Domain:
        """The Domain, as it is registered in the store."""
        return Domain(name=NAME, kind="code", description="Write a one-line Python function.")

    def generate(self, split: Split, count: int, seed: int) -> list[Task]:
        """``count`` different Tasks; the same for the same arguments."""
        randomness = generator(NAME, split, seed)
        numbers = pool(NUMBERS, split)

        def draw(place: int) -> Task:
            return _task(TEMPLATES[place % len(TEMPLATES)], randomness.choice(numbers), split)

        return draw_distinct(NAME, count, draw)


def _task(template: Template, number: int, split: Split) -> Task:
    # The tests belong to the Task, not to the call of generate: the same Task has the same tests.
    randomness = generator(f"{NAME}:{template.name}:{number}", split, 0)
    arguments = [template.argument(randomness, number) for _ in range(TESTS_PER_TASK)]
    tests = [{"args": [argument], "expected": template.reference(argument, number)} for argument in arguments]
    description = template.description.format(n=number)
    code = f"def {FUNCTION}(x):\n    return {template.body.format(n=number)}"
    return make_task(
        domain=NAME,
        split=split,
        messages=(
            {"role": "system", "content": SYSTEM_PROMPT},
            {"role": "user", "content": f"Write a Python function {FUNCTION}(x) that {description}."},
        ),
        verifiers=(VerifierSpec(name="unit_tests", options={"function": FUNCTION, "tests": tests}),),
        limits=LIMITS,
        demonstration=None if split == "heldout" else code,
        metadata={"template": template.name},
    )
