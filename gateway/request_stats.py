"""RequestStats: how many requests were answered and how long they took, counted without locks on the hot path.

Metrics of prometheus_client take a lock per change and look through their buckets one by one; these are sums that
become metrics when they are collected. Names, labels, types and values are the same.
"""

import time
from bisect import bisect_left
from collections.abc import Callable, Iterable

from prometheus_client import Counter
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

LATENCY_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
_BOUNDS = (*map(str, LATENCY_BUCKETS), "+Inf")
_METRICS = (
    (
        "hone_requests",
        "Requests answered, by route template, Policy or Base, and HTTP status"
        " (499: the client left; 599: an engine broke off a stream that had begun)",
        "counter",
    ),
    ("hone_request_seconds", "Seconds from the request's arrival to the answer's last byte", "histogram"),
    ("hone_first_token_seconds", "Seconds from a streamed request's arrival to its first event", "histogram"),
)


class _Timing:
    """One child of a histogram."""

    __slots__ = ("counts", "created", "total")

    def __init__(self, created: float) -> None:
        self.created = created
        self.total = 0.0
        self.counts = [0] * len(_BOUNDS)

    def observe(self, seconds: float) -> None:
        self.total += seconds
        self.counts[bisect_left(LATENCY_BUCKETS, seconds)] += 1


class _Answered:
    """One child of the counter of requests."""

    __slots__ = ("count", "created", "timing")

    def __init__(self, created: float, timing: _Timing) -> None:
        self.created = created
        self.timing = timing
        self.count = 0


class RequestStats(Collector):
    """Collects ``hone_requests``, ``hone_request_seconds`` and ``hone_first_token_seconds``.

    Counting belongs to one thread, the event loop's; collecting may happen anywhere.
    """

    def __init__(self, *, now: Callable[[], float] = time.time) -> None:
        self._now = now
        self._answered: dict[tuple[str, str, int], _Answered] = {}
        self._routes: dict[str, _Timing] = {}
        self._models: dict[str, _Timing] = {}
        # PROMETHEUS_DISABLE_CREATED_SERIES holds for these as for all others.
        (probe,) = Counter("probe", "", registry=None).collect()
        self._with_created = len(probe.samples) > 1

    def request_done(self, route: str, model: str, status: int, seconds: float) -> None:
        """Count an answered request."""
        answered = self._answered.get((route, model, status))
        if answered is None:
            answered = self._first_answer(route, model, status)
        answered.count += 1
        timing = answered.timing
        timing.total += seconds
        timing.counts[bisect_left(LATENCY_BUCKETS, seconds)] += 1

    def first_token(self, model: str, seconds: float) -> None:
        """Note how long a stream's first event took."""
        timing = self._models.get(model)
        if timing is None:
            timing = self._models[model] = _Timing(self._now())
        timing.observe(seconds)

    def describe(self) -> Iterable[Metric]:
        """The metrics without their values."""
        return [Metric(name, documentation, kind) for name, documentation, kind in _METRICS]

    def collect(self) -> Iterable[Metric]:
        """The metrics with their values."""
        requests, request_seconds, first_token_seconds = metrics = list(self.describe())
        for (route, model, status), answered in list(self._answered.items()):
            labels = {"route": route, "model": model, "status": str(status)}
            requests.add_sample("hone_requests_total", labels, float(answered.count))
            if self._with_created:
                requests.add_sample("hone_requests_created", labels, answered.created)
        for route, timing in list(self._routes.items()):
            self._add_histogram(request_seconds, {"route": route}, timing)
        for model, timing in list(self._models.items()):
            self._add_histogram(first_token_seconds, {"model": model}, timing)
        return metrics

    def _first_answer(self, route: str, model: str, status: int) -> _Answered:
        now = self._now()
        timing = self._routes.get(route)
        if timing is None:
            timing = self._routes[route] = _Timing(now)
        answered = self._answered[route, model, status] = _Answered(now, timing)
        return answered

    def _add_histogram(self, metric: Metric, labels: dict[str, str], timing: _Timing) -> None:
        total = 0.0
        for bound, count in zip(_BOUNDS, timing.counts, strict=True):
            total += count
            metric.add_sample(f"{metric.name}_bucket", {**labels, "le": bound}, total)
        metric.add_sample(f"{metric.name}_count", labels, total)
        metric.add_sample(f"{metric.name}_sum", labels, timing.total)
        if self._with_created:
            metric.add_sample(f"{metric.name}_created", labels, timing.created)
