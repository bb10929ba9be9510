"""Which Episodes a step of live learning takes, so that no one client dominates. Pure."""

import math
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

ItemT = TypeVar("ItemT")


def choose_fairly(
    items: Sequence[ItemT],
    *,
    tenant: Callable[[ItemT], str],
    size: int,
    share: float,
    before: Mapping[str, int] | None = None,
) -> list[ItemT]:
    """At most ``size`` items, tenants by turns, each tenant's in their order; the order of ``items`` stays.

    No tenant has more than ``share`` (rounded up) of what is chosen together with ``before``, the numbers that
    earlier steps took by tenant. What does not fit waits until others have something as well.
    """
    queues: dict[str, deque[int]] = {}
    for place, item in enumerate(items):
        queues.setdefault(tenant(item), deque()).append(place)
    chosen: dict[str, list[int]] = {name: [] for name in queues}
    room = size
    while room and any(queues.values()):
        for name in [name for name, queue in queues.items() if queue][:room]:
            chosen[name].append(queues[name].popleft())
            room -= 1
    earlier = Counter(before or {})
    while offender := _offender(chosen, earlier, share):
        chosen[offender].pop()
    return [items[place] for place in sorted(place for places in chosen.values() for place in places)]


def _offender(chosen: Mapping[str, Sequence[int]], earlier: Counter[str], share: float) -> str | None:
    """The tenant that has most beyond its share and can give back; None: no one has."""
    total = earlier.total() + sum(len(places) for places in chosen.values())
    most = math.ceil(share * total - 1e-9)
    over = {name: earlier[name] + len(places) - most for name, places in chosen.items() if places}
    worst = max(over, key=lambda name: (over[name], name), default=None)
    return worst if worst is not None and over[worst] > 0 else None
