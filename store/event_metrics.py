"""Prometheus metrics of every transport of events."""

from prometheus_client import CollectorRegistry, Counter


class EventMetrics:
    """Counters of one Events implementation."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.published = Counter(
            "hone_events_published", "Events published by this process", ["topic"], registry=registry
        )
        self.failures = Counter(
            "hone_events_publish_failures",
            "Events that could not be handed to the transport",
            registry=registry,
        )
        self.connections = Counter(
            "hone_events_connections", "Connections made to the transport of events", registry=registry
        )
