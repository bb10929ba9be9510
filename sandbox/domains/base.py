"""The port of a Domain source: makes a Domain's Tasks, the same ones for the same seed."""

import hashlib
import random
from collections.abc import Callable, Iterable
from typing import Protocol, TypeVar

from core.errors import TaskError
from core.task import Domain, Split, Task

ItemT = TypeVar("ItemT")

_MAX_DRAWS_PER_TASK = 200
_SPLIT_SHARES: tuple[tuple[Split, float], ...] = (("train", 0.5), ("heldout", 0.35), ("warmup", 0.15))


class DomainSource(Protocol):
    """Makes the Tasks of one Domain. Pure: no I/O, and ``generate`` depends on its arguments alone."""

    def domain(self) -> Domain:
        """The Domain, as it is registered in the store."""
        ...

    def generate(self, split: Split, count: int, seed: int) -> list[Task]:
        """``count`` different Tasks. No Task of one split is ever made for another.

        Raises TaskError when the split does not hold that many.
        """
        ...


def split_of(item: object) -> Split:
    """The split to which an ingredient of Tasks (a word, a number) belongs, dealt by hash once for all."""
    digest = hashlib.sha256(f"split:{item}".encode()).digest()
    place = int.from_bytes(digest[:8], "big") / 2**64
    for split, share in _SPLIT_SHARES:
        if place < share:
            return split
        place -= share
    return _SPLIT_SHARES[0][0]


def pool(items: Iterable[ItemT], split: Split) -> list[ItemT]:
    """Those of ``items`` that belong to ``split``, in their order."""
    return [item for item in items if split_of(item) == split]


def generator(domain: str, split: Split, seed: int) -> random.Random:
    """The source of randomness of one call of ``generate``."""
    return random.Random(f"{domain}:{split}:{seed}")


def draw_distinct(domain: str, count: int, draw: Callable[[int], Task]) -> list[Task]:
    """``count`` Tasks with different opening messages; ``draw`` gets the place in the list to be filled."""
    tasks: dict[str, Task] = {}
    draws = 0
    while len(tasks) < count:
        if draws >= count * _MAX_DRAWS_PER_TASK:
            raise TaskError(
                f"Domain '{domain}' holds only about {len(tasks)} different Tasks in this split, "
                f"and {count} were asked for"
            )
        task = draw(draws)
        tasks.setdefault(repr(task.messages), task)
        draws += 1
    return list(tasks.values())
