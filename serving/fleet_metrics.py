"""What the fleet shows to Prometheus."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from core.deployment import Deployment, DeploymentStatus, LoadedVersion
from serving.speculation.acceptance import Acceptance

_SWAP_BUCKETS = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)


class FleetMetrics:
    """The fleet's gauges, counters and histograms in one registry."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._loaded = Gauge(
            "hone_loaded_versions",
            "PolicyVersions loaded on a replica.",
            ["variant", "url"],
            registry=registry,
        )
        self._up = Gauge(
            "hone_engine_up",
            "1 while a replica is ready for requests.",
            ["variant", "url"],
            registry=registry,
        )
        self._restarts = Counter(
            "hone_engine_restarts", "Engine processes started again.", ["variant"], registry=registry
        )
        self._swap_seconds = Histogram(
            "hone_swap_seconds",
            "From the decision to load a version until its probe had passed.",
            ["variant"],
            buckets=_SWAP_BUCKETS,
            registry=registry,
        )
        self._swap_failures = Counter(
            "hone_swap_failures", "Loads that did not end in a live version.", ["code"], registry=registry
        )
        self._probe_error = Gauge(
            "hone_probe_error_nats",
            "Mean |engine - learner| log-prob of the newest probe.",
            ["policy", "variant"],
            registry=registry,
        )
        self._acceptance = Gauge(
            "hone_draft_acceptance", "Accepted share of draft tokens, lately.", ["url"], registry=registry
        )
        self._tokens_per_step = Gauge(
            "hone_draft_tokens_per_step",
            "Tokens per step of the target model, lately.",
            ["url"],
            registry=registry,
        )

    def deployment(self, deployment: Deployment) -> None:
        """Show a replica's state."""
        labels = (deployment.variant.value, deployment.url)
        self._up.labels(*labels).set(1.0 if deployment.status is DeploymentStatus.READY else 0.0)
        self._loaded.labels(*labels).set(len(deployment.loaded))

    def swapped(self, deployment: Deployment, loaded: LoadedVersion) -> None:
        """Count a load that passed its probe."""
        self._swap_seconds.labels(deployment.variant.value).observe(loaded.swap_seconds)
        self._probe_error.labels(loaded.policy, deployment.variant.value).set(loaded.probe.error)

    def swap_failed(self, code: str) -> None:
        """Count a load that failed, by the error's code."""
        self._swap_failures.labels(code).inc()

    def restarted(self, deployment: Deployment) -> None:
        """Count a restart."""
        self._restarts.labels(deployment.variant.value).inc()

    def speculated(self, deployment: Deployment, acceptance: Acceptance) -> None:
        """Show how draft tokens fare on a replica."""
        self._acceptance.labels(deployment.url).set(acceptance.rate)
        self._tokens_per_step.labels(deployment.url).set(acceptance.tokens_per_step)
