"""The gateway's Prometheus metrics; the registry is handed in."""

from prometheus_client import CollectorRegistry, Counter, Gauge

from gateway.request_stats import RequestStats

CLIENT_LEFT_STATUS = 499
"""Counted for a request whose client closed its connection before the answer was complete."""
STREAM_BROKEN_STATUS = 599
"""Counted for a stream that an engine broke off after its status 200 had been sent."""


class GatewayMetrics:
    """All metrics of one gateway process. Labels hold resolved names only, so their number stays bounded."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.registry = registry
        stats = RequestStats()
        registry.register(stats)
        self.request_done = stats.request_done
        """Count an answered request: route, model, status, seconds."""
        self.first_token = stats.first_token
        """Note how long a stream's first event took: model, seconds."""
        self._answer(registry)
        self._capture(registry)
        self._limit(registry)

    def _answer(self, registry: CollectorRegistry) -> None:
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
        self.swap_waits = Counter(
            "hone_swap_waits", "Requests that waited while full weights were replaced", registry=registry
        )
        self.variant_reasons = Counter(
            "hone_variant_reasons",
            "Requests to engines whose Variant was chosen by rule or is not the one asked for, by Variant and reason",
            ("variant", "reason"),
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

    def _capture(self, registry: CollectorRegistry) -> None:
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
            " not (rewritten_history, compaction, template, retokenised)",
            ("link",),
            registry=registry,
        )
        self.prompt_tokens = Counter(
            "hone_prompt_tokens",
            "Tokens of recorded prompts of which the engine says how many its prefix cache had, by model",
            ("model",),
            registry=registry,
        )
        self.cached_prompt_tokens = Counter(
            "hone_cached_prompt_tokens",
            "Tokens of those prompts that the prefix cache had, by model",
            ("model",),
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

    def _limit(self, registry: CollectorRegistry) -> None:
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

    def request_refused(self, status: int) -> None:
        """Count a request that was refused before its route was known: too large, too slow, or no HTTP."""
        self.request_done("refused", "", status, 0.0)
