"""The gateway's Prometheus metrics; the registry is handed in."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

_LATENCY_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)


CLIENT_LEFT_STATUS = 499
"""Counted for a request whose client closed its connection before the answer was complete."""
STREAM_BROKEN_STATUS = 599
"""Counted for a stream that an engine broke off after its status 200 had been sent."""


class GatewayMetrics:
    """All metrics of one gateway process. Labels hold resolved names only, so their number stays bounded."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.registry = registry
        # Looking a label up costs more than counting.
        self._request_counters: dict[tuple[str, str, int], Counter] = {}
        self._request_timers: dict[str, Histogram] = {}
        self._token_timers: dict[str, Histogram] = {}
        self.requests = Counter(
            "hone_requests",
            "Requests answered, by route template, Policy or Base, and HTTP status"
            " (499: the client left; 599: an engine broke off a stream that had begun)",
            ("route", "model", "status"),
            registry=registry,
        )
        self.request_seconds = Histogram(
            "hone_request_seconds",
            "Seconds from the request's arrival to the answer's last byte",
            ("route",),
            buckets=_LATENCY_BUCKETS,
            registry=registry,
        )
        self.first_token_seconds = Histogram(
            "hone_first_token_seconds",
            "Seconds from a streamed request's arrival to its first event",
            ("model",),
            buckets=_LATENCY_BUCKETS,
            registry=registry,
        )
        self.streams = Gauge("hone_streams_in_flight", "Streams open now", registry=registry)
        self.stream_failures = Counter(
            "hone_stream_failures", "Streams that an engine broke off after their start", registry=registry
        )
        self.engine_retries = Counter(
            "hone_engine_retries", "Requests sent again because a replica did not answer", registry=registry
        )
        self.fallbacks = Counter(
            "hone_fallbacks",
            "Requests that another model answered than the one that was asked for",
            ("asked", "answered"),
            registry=registry,
        )
        self.buffered_turns = Gauge("hone_recorder_buffered_turns", "Turns not durable yet", registry=registry)
        self.recorded_turns = Counter("hone_recorded_turns", "Turns made durable", registry=registry)
        self.lost_turns = Counter(
            "hone_lost_turns", "Turns that could not be kept, by cause", ("cause",), registry=registry
        )
        self.capture_failures = Counter(
            "hone_capture_failures",
            "Turns captured incompletely or not at all, by cause; the client got its answer all the same",
            ("cause",),
            registry=registry,
        )
        self.turn_links = Counter(
            "hone_turn_links",
            "Turns after an Episode's first, by whether their tokens continue the earlier Turn's (continues) or why"
            " not (rewritten_history, template, retokenised)",
            ("link",),
            registry=registry,
        )
        self.exact_turns = Counter(
            "hone_exact_turns",
            "Requests whose earlier answers went back as sampled ids, by whether a new rendering has the same ids"
            " (as_rendered) or others (kept)",
            ("rendering",),
            registry=registry,
        )
        self.exact_fallbacks = Counter(
            "hone_exact_fallbacks",
            "Requests of token-exact conversations that were rendered anew, by cause",
            ("cause",),
            registry=registry,
        )
        self.outside_requests = Counter(
            "hone_outside_requests",
            "Requests sent to outside models, by provider and outcome (answered, failed)",
            ("provider", "outcome"),
            registry=registry,
        )
        self.routing_refreshes = Counter(
            "hone_routing_refreshes", "Times the routing table was read, by outcome", ("outcome",), registry=registry
        )

        self.limited = Counter(
            "hone_limited_requests", "Requests refused by a limit, by what it counts", ("unit",), registry=registry
        )
        self.limits_degraded = Counter(
            "hone_limits_degraded",
            "Leases that this replica decided alone because the shared counters did not answer",
            registry=registry,
        )
        self.limits_alone = Gauge(
            "hone_limits_alone", "1 while the shared counters do not answer and limits are local", registry=registry
        )

    def request_done(self, route: str, model: str, status: int, seconds: float) -> None:
        """Count an answered request."""
        counter = self._request_counters.get((route, model, status))
        if counter is None:
            counter = self._request_counters[route, model, status] = self.requests.labels(route, model, status)
        counter.inc()
        timer = self._request_timers.get(route)
        if timer is None:
            timer = self._request_timers[route] = self.request_seconds.labels(route)
        timer.observe(seconds)

    def first_token(self, model: str, seconds: float) -> None:
        """Note how long a stream's first event took."""
        timer = self._token_timers.get(model)
        if timer is None:
            timer = self._token_timers[model] = self.first_token_seconds.labels(model)
        timer.observe(seconds)
