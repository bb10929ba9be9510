"""Domains ``reasoning_gym/<dataset>``: any dataset of the reasoning-gym package, judged by its own scorer.

The only file that knows the package, which is heavy and optional: it is imported when first used. Some of its
scorers pass the answer of the policy to ``eval`` or to sympy's parser, which evaluates too. Those datasets
are refused, because a scorer runs outside of the sandbox. Source: https://github.com/open-thought/reasoning-gym.
"""

import importlib
import inspect
import json
import re
from functools import lru_cache
from types import ModuleType
from typing import Any

from core.errors import TaskError, VerifierError, boundary
from core.task import Domain, Limits, Split, Task, VerifierSpec, make_task
from sandbox.domains.base import split_of

PREFIX = "reasoning_gym/"
VERIFIER = "reasoning_gym"
SYSTEM_PROMPT = "Answer the question. Give only the answer."
LIMITS = Limits(max_turns=1, max_tokens=128, wall_seconds=60.0)
MAX_ANSWER = 4_000
"""Characters of an answer that are handed to a scorer."""

_MAX_ROUNDS = 60
"""Entries looked at for each Task that is asked for."""
_INDICES = 10_000_000
"""The length that datasets are made with; entries are made one by one, when they are asked for."""
_EVALUATES = re.compile(r"\b(?:eval|exec|parse_expr|sympify|literal_eval)\s*\((?!\s*(?:entry|metadata)\[)")


class ReasoningGymDomain:
    """One dataset of reasoning-gym."""

    def __init__(self, dataset: str, config: dict[str, Any] | None = None) -> None:
        check_dataset(dataset)
        self._dataset = dataset
        self._config = config or {}

    def domain(self) -> Domain:
        """The Domain, as it is registered in the store."""
        return Domain(
            name=PREFIX + self._dataset,
            kind="reasoning_gym",
            description=f"reasoning-gym's dataset '{self._dataset}'.",
        )

    def generate(self, split: Split, count: int, seed: int) -> list[Task]:
        """``count`` different Tasks; the same for the same arguments (and the same reasoning-gym).

        A question belongs to one split, by its hash, whatever seed made it.
        """
        found: dict[str, Task] = {}
        for index in range(_MAX_ROUNDS * max(1, count)):
            entry = _entry(self._dataset, seed, index, self._config)
            question = str(entry["question"])
            if split_of(question) == split:
                found.setdefault(question, self._task(entry, split, (seed, index)))
            if len(found) >= count:
                return list(found.values())[:count]
        raise TaskError(
            f"Domain '{PREFIX}{self._dataset}' holds only about {len(found)} different Tasks "
            f"in split '{split}', and {count} were asked for"
        )

    def _task(self, entry: dict[str, Any], split: Split, place: tuple[int, int]) -> Task:
        seed, index = place
        answer = entry.get("answer")
        return make_task(
            domain=PREFIX + self._dataset,
            split=split,
            messages=(
                {"role": "system", "content": SYSTEM_PROMPT},
                {"role": "user", "content": str(entry["question"])},
            ),
            verifiers=(
                VerifierSpec(
                    name=VERIFIER,
                    options={
                        "dataset": self._dataset,
                        "seed": seed,
                        "index": index,
                        "config": self._config,
                    },
                ),
            ),
            limits=LIMITS,
            demonstration=None if split == "heldout" or answer is None else str(answer),
        )


def check_dataset(dataset: str) -> None:
    """Raise TaskError unless ``dataset`` exists and its scorer does not evaluate answers as code."""
    classes = _registered()
    if dataset not in classes:
        raise TaskError(f"reasoning-gym has no dataset '{dataset}'", hint="'chain_sum' is one")
    if evaluates_answers(classes[dataset][0]):
        raise TaskError(
            f"the scorer of reasoning-gym's '{dataset}' evaluates answers as Python code",
            hint="scorers run outside of the sandbox, so this dataset is refused",
        )


def evaluates_answers(dataset_class: type) -> bool:
    """Whether a dataset's scorer, or a function of its module that the scorer names, evaluates text.

    Read from the source, erring on the side of yes; a call on the dataset's own entry does not count.
    """
    scorer = getattr(dataset_class, "score_answer")  # noqa: B009 - the class is only known by name
    sources = [inspect.getsource(scorer)]
    module = inspect.getmodule(scorer)
    for name in set(re.findall(r"\b(?:self\.|cls\.)?(\w+)\(", sources[0])):
        called = getattr(dataset_class, name, None) or getattr(module, name, None)
        if inspect.isfunction(called) and called.__module__ == scorer.__module__:
            sources.append(inspect.getsource(called))
    return any(_EVALUATES.search(source) for source in sources)


def score_answer(options: dict[str, Any], answer: str) -> float:
    """reasoning-gym's score of ``answer`` in [0, 1]; raises VerifierError when its scorer fails.

    ``options``: dataset, seed, index, config, as ``generate`` wrote them into the Task.
    """
    check_dataset(options["dataset"])
    with boundary(VerifierError, f"scorer of reasoning-gym's '{options['dataset']}'"):
        dataset = _dataset(options["dataset"], options["seed"], options["config"])
        score = float(dataset.score_answer(answer=answer[:MAX_ANSWER], entry=dataset[options["index"]]))
    return min(1.0, max(0.0, score))


def _entry(dataset: str, seed: int, index: int, config: dict[str, Any]) -> dict[str, Any]:
    entry: dict[str, Any] = _dataset(dataset, seed, config)[index]
    return entry


def _dataset(dataset: str, seed: int, config: dict[str, Any]) -> Any:
    return _made(dataset, seed, json.dumps(config, sort_keys=True))


@lru_cache(maxsize=64)
def _made(dataset: str, seed: int, config: str) -> Any:
    with boundary(TaskError, f"reasoning-gym's '{dataset}' with {config}"):
        return _package().create_dataset(dataset, size=_INDICES, seed=seed, **json.loads(config))


def _registered() -> dict[str, tuple[type, type]]:
    _package()
    registered: dict[str, tuple[type, type]] = importlib.import_module("reasoning_gym.factory").DATASETS
    return registered


def _package() -> ModuleType:
    try:
        return importlib.import_module("reasoning_gym")
    except ImportError as error:
        raise TaskError("the package reasoning-gym is not installed") from error
