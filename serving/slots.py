"""Which replicas the configuration asks for, and which of the known Deployments is which. Pure."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from core.config.serving import FleetSection
from core.deployment import Deployment
from core.variant import Variant


@dataclass(frozen=True)
class Slot:
    """The place of one replica."""

    variant: Variant
    replica: int
    """Which of the Variant's replicas."""
    url: str | None = None
    """Of an attached engine; None: the fleet launches one."""
    order: int = 0
    """Among the launched engines of the machine."""


def log_name(variant: Variant, replica: int) -> str:
    """The log file of a launched engine."""
    number = f"-{replica}" if replica else ""
    return f"engine-{variant}{number}.log"


def wanted_slots(fleet: FleetSection) -> list[Slot]:
    """The replicas of each configured Variant, in order; attached ones by URL, launched ones by number."""
    slots: list[Slot] = []
    launched = 0
    for variant in dict.fromkeys(Variant(name) for name in fleet.variants):
        attached = fleet.attach.get(variant)
        if attached is not None:
            urls = dict.fromkeys(url.strip().rstrip("/") for url in attached.split(",") if url.strip())
            slots += [Slot(variant, number, url=url) for number, url in enumerate(urls)]
            continue
        for number in range(fleet.replicas.get(variant, 1)):
            slots.append(Slot(variant, number, order=launched))
            launched += 1
    return slots


def take_row(rows: list[Deployment], slot: Slot) -> Deployment | None:
    """Remove from ``rows`` the Deployment that has this place, and return it.

    An attached engine is known by its URL, a launched one by its Variant and number.
    """
    for row in rows:
        launched = row.machine is not None or row.pid is not None
        fits = row.replica == slot.replica if slot.url is None else row.url == slot.url
        if row.variant is slot.variant and launched is (slot.url is None) and fits:
            rows.remove(row)
            return row
    return None


def next_port(first: int, taken: Collection[int]) -> int:
    """The first port from ``first`` on that is not ``taken``."""
    port = first
    while port in taken:
        port += 1
    return port


def count_launched(slots: Iterable[Slot]) -> int:
    """How many engines the fleet launches itself."""
    return sum(slot.url is None for slot in slots)
