"""The port of counters that gateway replicas share: what was used in a sliding window, and what is held now.

A **window** counts what was granted in the last ``WINDOW_SECONDS``, in buckets of one second. A grant may be used
up to the end of the second after its own, so a bucket counts for ``COUNTED_BUCKETS`` seconds: then no interval of
``WINDOW_SECONDS`` holds more uses than the limit, whatever the replicas do. (GCRA would let nearly twice the limit
through in one window after a pause, and the weighted two-window counter assumes that traffic was even.)

A **hold** is an amount in use now, per replica, plus what was used up for good: streams that are open, or a budget
with its reservations. A replica that renews nothing for ``HOLD_SECONDS`` loses its part.
"""

from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple, Protocol

WINDOW_SECONDS = 60
LEASE_BUCKETS = 2
"""The second of a grant and the one after it: how long a grant may be used."""
COUNTED_BUCKETS = WINDOW_SECONDS + LEASE_BUCKETS
HOLD_SECONDS = 30.0
"""A killed replica's holds are free after this time."""
SPARE_SHARE = 8
"""A grant goes beyond its need by at most this part of what is then free, so that a limit is used to its end."""


class CounterKind(StrEnum):
    """What a counter counts."""

    WINDOW = "window"
    HOLD = "hold"


class Ask(NamedTuple):
    """A wish for some of a counter's limit."""

    counter: str
    kind: CounterKind
    limit: int
    need: int
    """Less is a refusal."""
    want: int
    """More than this is not granted."""
    back: int = 0
    """A window's earlier grant that was not used, given back first."""
    back_bucket: int = 0
    floor: int = 0
    """A hold's used part is at least this much."""


class Grant(NamedTuple):
    """The answer to one Ask."""

    amount: int
    """0: refused."""
    remaining: int
    """What is free after it."""
    retry_seconds: float
    """When the need may be met; infinite for a need above the limit, 0 where it is not known."""


class Reservation(NamedTuple):
    """The answer to Asks that belong together: all are met or none is."""

    grants: tuple[Grant, ...]
    granted: bool
    bucket: int
    fresh_seconds: float
    """How long windows' grants may be used, from the moment when they were asked for."""


class Change(NamedTuple):
    """What became of earlier grants of one counter."""

    counter: str
    kind: CounterKind
    held: int = 0
    """Added to this replica's hold; 0 renews it."""
    used: int = 0
    """Added to a hold's used part."""
    back: int = 0
    """Given back to a window's bucket; below 0: used beyond the grant."""
    bucket: int = 0


class Counters(Protocol):
    """Counters as one replica sees them. Every method raises StoreError when they cannot be reached."""

    async def reserve(self, asks: Sequence[Ask]) -> Reservation:
        """Take from all the counters or from none, in one atomic step. Their names share a ``{tag}``."""
        ...

    async def change(self, changes: Sequence[Change]) -> None:
        """Give back, use up, or renew."""
        ...

    async def beat(self) -> int:
        """Say that this replica lives; how many do."""
        ...

    def reborn(self) -> None:
        """Count as a new replica from now on: what the old one held is not known any more, and lapses."""
        ...

    async def close(self) -> None:
        """Give up this replica's place and close connections; never raises."""
        ...
