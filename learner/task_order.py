"""Which Tasks a step trains on: a pure function of the seed and the step, so that a resumed run sees the same."""

import random
from collections.abc import Iterator, Mapping, Sequence
from itertools import count, islice

from core.errors import LearnerError


def tasks_of_step(
    tasks_by_domain: Mapping[str, Sequence[str]],
    quotas: Mapping[str, float],
    *,
    seed: int,
    step: int,
    size: int,
) -> list[str]:
    """The ``size`` Task ids of a step.

    Domains share the slots in proportion to their quotas; within a Domain, Tasks come in a shuffled order that is
    new in each pass. Raises LearnerError when there is no Task.
    """
    filled = {domain: ids for domain, ids in tasks_by_domain.items() if ids and quotas.get(domain, 1.0) > 0}
    if not filled:
        raise LearnerError(
            f"no Task of split 'train' in {', '.join(sorted(tasks_by_domain)) or 'any Domain'}",
            hint="import Tasks first",
        )
    weights = {domain: quotas.get(domain, 1.0) for domain in filled}
    return list(islice(_endless(filled, weights, seed), step * size, (step + 1) * size))


def order_of_pass(items: int, *, seed: int, epoch: int) -> list[int]:
    """A permutation of ``range(items)`` for one pass over the data."""
    order = list(range(items))
    random.Random(f"{seed}:{epoch}").shuffle(order)
    return order


def _endless(tasks: Mapping[str, Sequence[str]], weights: Mapping[str, float], seed: int) -> Iterator[str]:
    streams = {domain: _stream(ids, f"{seed}:{domain}") for domain, ids in tasks.items()}
    taken = dict.fromkeys(tasks, 0)
    while True:
        # The Domain that is farthest behind its share comes next.
        domain = min(sorted(taken), key=lambda name: (taken[name] + 1) / weights[name])
        taken[domain] += 1
        yield next(streams[domain])


def _stream(ids: Sequence[str], seed: str) -> Iterator[str]:
    for epoch in count():
        order = sorted(ids)
        random.Random(f"{seed}:{epoch}").shuffle(order)
        yield from order
