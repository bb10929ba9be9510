"""Metrics of A/B Experiments; Experiments are few, so their ids may be labels."""

from prometheus_client import CollectorRegistry, Counter, Gauge


class ExperimentMetrics:
    """Of one gateway process."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.running = Gauge(
            "hone_experiments_running", "A/B Experiments that this gateway follows", registry=registry
        )
        self.requests = Counter(
            "hone_experiment_requests",
            "Requests of an A/B Experiment, by the arm that answered",
            ("experiment", "arm"),
            registry=registry,
        )
        self.fallbacks = Counter(
            "hone_experiment_fallbacks",
            "Requests that another arm answered than the one assigned, by the assigned arm and cause (not_held,"
            " unavailable, other_model)",
            ("experiment", "arm", "cause"),
            registry=registry,
        )
        self.failures = Counter(
            "hone_experiment_failed_requests",
            "Requests of an A/B Experiment that failed, by arm",
            ("experiment", "arm"),
            registry=registry,
        )
        self.lost = Counter(
            "hone_experiment_lost_records",
            "Records of failed requests that could not be kept",
            registry=registry,
        )
        self.rollbacks = Counter(
            "hone_experiment_rollbacks", "A/B Experiments that a guardrail ended", registry=registry
        )
        self.notifications = Counter(
            "hone_experiment_notifications",
            "POSTs to webhooks, by outcome (delivered, failed, dropped)",
            ("outcome",),
            registry=registry,
        )
        self.watch_failures = Counter(
            "hone_experiment_watch_failures", "Looks at guardrails that failed", registry=registry
        )
        self.refreshes = Counter(
            "hone_experiment_refreshes",
            "Times running Experiments were read, by outcome",
            ("outcome",),
            registry=registry,
        )
