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
    least: int = 0,
    before: Mapping[str, int] | None = None,
) -> list[ItemT]:
    """At most ``size`` items, tenants by turns, each tenant's in their order; the order of ``items`` stays.

    No tenant has more than ``share`` (rounded up) of what is chosen together with ``before``, the numbers that
    earlier steps took by tenant. What does not fit waits until others have something as well. Only tenants with
    items count: a single one has all. The quota never leaves fewer than ``least`` where there are that many;
    ``tenant_weights`` says how much those beyond the share may weigh.
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
    earlier = Counter({name: number for name, number in (before or {}).items() if name in chosen})
    while len(chosen) > 1 and sum(map(len, chosen.values())) > least:
        offender = _offender(chosen, earlier, share)
        if offender is None:
            break
        chosen[offender].pop()
    return [items[place] for place in sorted(place for places in chosen.values() for place in places)]


def tenant_weights(numbers: Mapping[str, int], share: float) -> dict[str, float]:
    """How much each of a tenant's Episodes weighs, from 0 to 1, so that none has more than ``share`` of the weight.

    All weigh 1 where the numbers (rounded up) respect the share; so does a single tenant, and among few tenants
    ``share`` is at least an equal one.
    """
    if not numbers:
        return {}
    fair = max(share, 1.0 / len(numbers))
    cap = float(max(numbers.values()))
    if cap > math.ceil(fair * sum(numbers.values()) - 1e-9):
        cap = _cap(sorted(numbers.values(), reverse=True), fair)
    return {name: min(1.0, cap / number) if number else 1.0 for name, number in numbers.items()}


def _cap(numbers: Sequence[int], share: float) -> float:
    """The most that one may weigh, for each of ``numbers``, largest first: ``share`` of all that is left of them."""
    for cut in range(1, len(numbers)):
        if cut * share >= 1.0 - 1e-9:
            break
        cap = share * sum(numbers[cut:]) / (1.0 - cut * share)
        if numbers[cut] <= cap + 1e-9:
            return cap
    return float(numbers[-1])


def _offender(chosen: Mapping[str, Sequence[int]], earlier: Counter[str], share: float) -> str | None:
    """The tenant that has most beyond its share and can give back; None: no one has."""
    total = earlier.total() + sum(len(places) for places in chosen.values())
    most = math.ceil(share * total - 1e-9)
    over = {name: earlier[name] + len(places) - most for name, places in chosen.items() if places}
    worst = max(over, key=lambda name: (over[name], name), default=None)
    return worst if worst is not None and over[worst] > 0 else None
