"""The worker's Prometheus metrics."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram


class WorkerMetrics:
    """What a worker counts; made once for each registry."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.jobs = Counter("hone_worker_jobs", "Jobs ended by this worker.", ("kind", "outcome"), registry=registry)
        self.jobs_running = Gauge("hone_worker_jobs_running", "Jobs being run now.", registry=registry)
        self.episodes = Counter(
            "hone_worker_episodes", "Episodes ended.", ("status", "stop_reason"), registry=registry
        )
        self.episode_seconds = Histogram(
            "hone_worker_episode_seconds",
            "From an Episode's creation to its Reward.",
            buckets=(0.1, 0.3, 1, 3, 10, 30, 100, 300, 1000),
            registry=registry,
        )
        self.verdicts = Counter(
            "hone_worker_verdicts", "Verdicts written.", ("verifier", "status"), registry=registry
        )
        self.heartbeat_failures = Counter(
            "hone_worker_heartbeat_failures",
            "Heartbeats that did not reach the store, or came too late.",
            registry=registry,
        )
