"""The order of demonstrations: a pure function of the seed, so that a resumed run sees the same."""

import random


def order_of_pass(items: int, *, seed: int, epoch: int) -> list[int]:
    """A permutation of ``range(items)`` for one pass over the data."""
    order = list(range(items))
    random.Random(f"{seed}:{epoch}").shuffle(order)
    return order
