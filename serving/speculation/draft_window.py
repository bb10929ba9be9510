"""How draft tokens fared lately on each fast replica, added up from its engine's counters."""

from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass, field

from core.drafter import DraftCounts
from serving.engines.base import EngineMetrics
from serving.replica import Replica

_NONE = DraftCounts()


@dataclass
class _Seen:
    """One replica's readings."""

    reading: EngineMetrics
    """What the replica's counters were when last looked at."""
    last: EngineMetrics
    """Counters up to which everything is counted."""
    read_at: float
    lately: deque[DraftCounts] = field(default_factory=deque)
    fresh: DraftCounts = _NONE
    """Since ``take``."""
    key: Hashable = None


class DraftWindows:
    """Counts per Deployment, with the newest ``least_drafts`` drafts and hardly more kept as "lately"."""

    def __init__(self, *, least_drafts: int) -> None:
        self._least_drafts = least_drafts
        self._seen: dict[str, _Seen] = {}

    def read(self, replica: Replica) -> None:
        """Take in the replica's counters, where they were read anew."""
        load = replica.deployment.load
        seen = self._seen.get(replica.deployment.id)
        if load is None or (seen is not None and seen.reading is replica.counters):
            return
        if seen is None:
            self._seen[replica.deployment.id] = _Seen(replica.counters, replica.counters, load.read_at)
            return
        counts = counted(seen.last, replica.counters, seconds=load.read_at - seen.read_at)
        seen.reading = seen.last = replica.counters
        seen.read_at = load.read_at
        seen.fresh += counts
        seen.lately.append(counts)
        drafts = sum(one.drafts for one in seen.lately)
        while drafts - seen.lately[0].drafts >= self._least_drafts:
            drafts -= seen.lately.popleft().drafts

    def lately(self, deployment_id: str, key: Hashable) -> DraftCounts:
        """The newest counts; none that were taken while ``key`` (drafter and targets) was another one."""
        seen = self._seen.get(deployment_id)
        if seen is None:
            return DraftCounts()
        if seen.key != key:
            seen.key = key
            seen.lately.clear()
        return self.present(deployment_id)

    def present(self, deployment_id: str) -> DraftCounts:
        """The newest counts as they are."""
        seen = self._seen.get(deployment_id)
        return DraftCounts() if seen is None else sum(seen.lately, DraftCounts())

    def take(self, deployment_id: str) -> DraftCounts:
        """What was counted since this was last asked."""
        seen = self._seen.get(deployment_id)
        if seen is None:
            return DraftCounts()
        fresh, seen.fresh = seen.fresh, DraftCounts()
        return fresh

    def begin(self, replica: Replica, counters: EngineMetrics, *, at: float) -> None:
        """Count from ``counters`` on: the replica drafts with another model now."""
        self._seen[replica.deployment.id] = _Seen(replica.counters, counters, at)


def counted(before: EngineMetrics, after: EngineMetrics, *, seconds: float) -> DraftCounts:
    """What happened between two readings. A fall shows a restart, or a reading that came late: nothing is counted.

    Speed is counted over spans at whose ends requests were being decoded.
    """
    if after.drafts < before.drafts or after.output_tokens < before.output_tokens:
        return DraftCounts()
    busy = before.running > 0 and after.running > 0 and seconds > 0
    return DraftCounts(
        drafts=int(after.drafts - before.drafts),
        draft_tokens=int(after.draft_tokens - before.draft_tokens),
        accepted_tokens=int(after.accepted_tokens - before.accepted_tokens),
        output_tokens=int(after.output_tokens - before.output_tokens) if busy else 0,
        busy_seconds=seconds if busy else 0.0,
        request_seconds=seconds * (before.running + after.running) / 2 if busy else 0.0,
    )
