"""What is measured: workloads, which targets get which, and how often."""

from dataclasses import dataclass, replace

from bench.gateway.load import Workload

CONCURRENCY = (1, 16, 64, 256)
PACE_MS = 5


def json_workload(connections: int) -> Workload:
    """Whole answers."""
    return Workload(f"json c={connections}", connections)


def stream_workload(connections: int) -> Workload:
    """Streams of 62 events without a pause."""
    return Workload(f"stream c={connections}", connections, stream=True)


def paced_workload(connections: int) -> Workload:
    """Streams of 62 events, one every 5 ms."""
    return Workload(f"stream 5 ms c={connections}", connections, stream=True, pace_ms=PACE_MS)


JSON_ADDED = json_workload(1)
JSON_BUSY = json_workload(64)
STREAM_BUSY = stream_workload(256)
STREAM_PACED = paced_workload(256)
LARGE = Workload("json c=64, large answer", 64, large=True)
LARGE_STREAM = Workload("stream 5 ms c=256, large answer", 256, stream=True, pace_ms=PACE_MS, large=True)
CHECKED = (JSON_ADDED, JSON_BUSY, STREAM_BUSY, STREAM_PACED)
"""What the checks are made of: repeated in every round."""
EVERYTHING = (
    *(json_workload(number) for number in CONCURRENCY),
    *(stream_workload(number) for number in CONCURRENCY),
    *(paced_workload(number) for number in (64, 256)),
)
SLOW = (JSON_ADDED, json_workload(16), JSON_BUSY, stream_workload(16), paced_workload(64))
SLOW_TARGETS = frozenset({"fastapi-httpx", "litellm", "litellm-logged"})
"""They need seconds to warm up, and do not finish the larger workloads."""
IDLE_STREAMS = Workload("idle streams", 1000, stream=True, pace_ms=60_000, warmup=4.0, seconds=600.0)


@dataclass(frozen=True)
class Plan:
    """How much is measured."""

    rounds: int = 3
    seconds: float = 3.0
    warmup: float = 0.7
    tries: int = 2
    growth_requests: int = 100_000
    stored_answers: int = 4_000
    stored_streams: int = 1_000
    records: int = 20_000
    quick: bool = False

    def workloads(self, target: str, round_number: int) -> list[Workload]:
        """What a target gets in a round: everything in the first one, then what the checks need."""
        if target in SLOW_TARGETS:
            logged = target == "litellm-logged"
            if round_number > 0 or self.quick:
                chosen: tuple[Workload, ...] = (JSON_BUSY,) if logged or round_number == 0 else ()
            else:
                chosen = SLOW
            return [replace(one, seconds=max(3.0, self.seconds), warmup=3.0, drain=8.0) for one in chosen]
        chosen = CHECKED if self.quick or round_number > 0 else EVERYTHING
        if target == "vllm-router" and round_number == 0:
            chosen = (*chosen, LARGE, LARGE_STREAM)
        if target == "direct":
            chosen = tuple(one for one in chosen if one is not LARGE)
        return [replace(one, seconds=self.seconds, warmup=self.warmup) for one in chosen]


FULL = Plan()
QUICK = Plan(
    rounds=1,
    seconds=1.0,
    warmup=0.4,
    tries=1,
    growth_requests=2_000,
    stored_answers=500,
    stored_streams=100,
    records=2_000,
    quick=True,
)
