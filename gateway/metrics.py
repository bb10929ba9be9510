"""The gateway's Prometheus metrics; the registry is handed in."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

_LATENCY_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)


class GatewayMetrics:
    """All metrics of one gateway process. Labels hold resolved names only, so their number stays bounded."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.registry = registry
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
        self.routing_refreshes = Counter(
            "hone_routing_refreshes", "Times the routing table was read, by outcome", ("outcome",), registry=registry
        )
