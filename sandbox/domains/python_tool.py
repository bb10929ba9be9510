"""Domain ``python_tool``: answer a small question by one call of the python tool, in JSON.

The call runs in a sandbox box; what it puts out is judged. The table of templates is the whole Domain: to
change it, change a row.

Warm-up demonstrations are of mixed quality on purpose, as collected ones are: every second one forgets to print, so
its call runs and shows nothing. Imitation learns both ways; only the sandbox tells them apart.
"""

import json
import random
from collections.abc import Callable
from dataclasses import dataclass

from core.message import Message
from core.task import Domain, Limits, Split, Task, ToolSpec, VerifierSpec, make_task
from sandbox.domains.base import draw_distinct, generator, pool
from sandbox.domains.words import WORDS

NAME = "python_tool"
TOOL = "python"
SYSTEM_PROMPT = "Reply with one tool call in JSON."
LIMITS = Limits(max_turns=1, max_tokens=32, wall_seconds=30.0, tool_seconds=3.0, memory_mib=128)
NUMBERS = range(11, 100)

# The dense score: 0.1 for JSON, 0.2 for a call that fits the schema, 0.2 for running without error and 0.5
# for the expected output. The first two are the form's, the last two the output's.
FORM_WEIGHT = 0.3
OUTPUT_WEIGHT = 0.7
JSON_SCORE = 0.1 / FORM_WEIGHT
RAN_SCORE = 0.2 / OUTPUT_WEIGHT
ARGUMENTS_SCHEMA = {
    "type": "object",
    "properties": {"code": {"type": "string", "minLength": 1}},
    "required": ["code"],
    "additionalProperties": False,
}


@dataclass(frozen=True)
class Ingredients:
    """What one Task is made of, all from one split."""

    word: str
    letter: str
    """One of the word's letters."""
    times: int
    a: int
    b: int
    c: int


@dataclass(frozen=True)
class Template:
    """A question, the code that answers it, and the answer, computed here and not by that code."""

    name: str
    question: str
    code: str
    answer: Callable[[Ingredients], object]


TEMPLATES: tuple[Template, ...] = (
    Template("length", 'How many letters are in "{word}"?', "print(len('{word}'))", lambda i: len(i.word)),
    Template("reverse", 'Write "{word}" backwards.', "print('{word}'[::-1])", lambda i: i.word[::-1]),
    Template("first", 'What is the first letter of "{word}"?', "print('{word}'[0])", lambda i: i.word[0]),
    Template("last", 'What is the last letter of "{word}"?', "print('{word}'[-1])", lambda i: i.word[-1]),
    Template("repeat", 'Repeat "{word}" {times} times.', "print('{word}'*{times})", lambda i: i.word * i.times),
    Template(
        "sort",
        'Sort the letters of "{word}".',
        "print(''.join(sorted('{word}')))",
        lambda i: "".join(sorted(i.word)),
    ),
    Template(
        "smallest",
        "Which is smallest: {a}, {b} or {c}?",
        "print(min({a},{b},{c}))",
        lambda i: min(i.a, i.b, i.c),
    ),
    Template("subtract", "Take {b} away from {a}.", "print({a}-{b})", lambda i: i.a - i.b),
)


def call_text(code: str) -> str:
    """The assistant text of a call of the python tool, as short as JSON can be."""
    return json.dumps({"name": TOOL, "arguments": {"code": code}}, separators=(",", ":"), ensure_ascii=False)


class PythonToolDomain:
    """Words and numbers are dealt to the splits by hash; templates take turns."""

    def __init__(self, templates: tuple[Template, ...] = TEMPLATES, system_prompt: str = SYSTEM_PROMPT) -> None:
        self._templates = templates
        self._system_prompt = system_prompt

    def domain(self) -> Domain:
        """The Domain, as it is registered in the store."""
        return Domain(
            name=NAME,
            kind="tool_call",
            description="Answer a small question about a word or numbers by one call of the python tool.",
        )

    def generate(self, split: Split, count: int, seed: int) -> list[Task]:
        """``count`` different Tasks; the same for the same arguments."""
        randomness = generator(NAME, split, seed)
        words, numbers = pool(WORDS, split), pool(NUMBERS, split)

        def draw(place: int) -> Task:
            template = self._templates[place % len(self._templates)]
            silent = split == "warmup" and (place // len(self._templates)) % 2 == 1
            return self._task(template, _ingredients(randomness, words, numbers), split, silent=silent)

        return draw_distinct(NAME, count, draw)

    def _task(self, template: Template, ingredients: Ingredients, split: Split, *, silent: bool) -> Task:
        values = vars(ingredients)
        code = template.code.format(**values)
        shown = code.removeprefix("print(").removesuffix(")") if silent else code
        answer = str(template.answer(ingredients))
        return make_task(
            domain=NAME,
            split=split,
            messages=self._opening(template.question.format(**values)),
            tools=(ToolSpec(name=TOOL),),
            verifiers=(
                VerifierSpec(
                    name="tool_call",
                    options={"name": TOOL, "arguments": ARGUMENTS_SCHEMA, "json_score": JSON_SCORE},
                    weight=FORM_WEIGHT,
                ),
                VerifierSpec(
                    name="tool_output",
                    options={"expected": answer, "tool": TOOL, "ran_score": RAN_SCORE},
                    weight=OUTPUT_WEIGHT,
                ),
            ),
            limits=LIMITS,
            demonstration=None if split == "heldout" else call_text(shown),
            metadata={"template": template.name, "silent_demonstration": silent},
        )

    def _opening(self, question: str) -> tuple[Message, ...]:
        user: Message = {"role": "user", "content": question}
        return ({"role": "system", "content": self._system_prompt}, user) if self._system_prompt else (user,)


def _ingredients(randomness: random.Random, words: list[str], numbers: list[int]) -> Ingredients:
    word = randomness.choice(words)
    a, b, c = randomness.sample(numbers, 3)
    return Ingredients(word=word, letter=randomness.choice(word), times=randomness.randint(2, 5), a=a, b=b, c=c)
