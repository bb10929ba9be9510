"""Metrics of shadows; Experiments are few, so their ids may be labels."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram


class ShadowMetrics:
    """Of one gateway process."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.running = Gauge("hone_shadows_running", "Shadows that this gateway follows", registry=registry)
        self.mirrored = Counter(
            "hone_shadow_requests",
            "Requests that were mirrored, by what came of it (scored, unscored, failed)",
            ("experiment", "status"),
            registry=registry,
        )
        self.skipped = Counter(
            "hone_shadow_skipped",
            "Requests that were not mirrored, by reason",
            ("experiment", "reason"),
            registry=registry,
        )
        self.tokens = Counter(
            "hone_shadow_candidate_tokens",
            "Tokens that candidates sampled for mirrored requests",
            ("experiment",),
            registry=registry,
        )
        self.seconds = Histogram(
            "hone_shadow_candidate_seconds",
            "Time of a candidate's whole answer to a mirrored request",
            ("experiment",),
            registry=registry,
            buckets=(0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0),
        )
        self.failures = Counter(
            "hone_shadow_internal_failures",
            "Failures of shadowing itself, by part (offer, mirror, write); no client sees them",
            ("part",),
            registry=registry,
        )
        self.lost = Counter(
            "hone_shadow_lost_pairs",
            "Pairs that were not stored, by cause (withdrawn, stopped)",
            ("cause",),
            registry=registry,
        )
