"""The port for wake-ups between parts and processes of Hone.

Events are level-triggered hints: whoever waits re-reads the state that it cares about. They may come late,
twice or without cause, and losing them costs latency, never data.
"""

from collections.abc import Collection, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol

JOBS = "jobs"
VERSIONS = "versions"
DEPLOYMENTS = "deployments"
TURNS = "turns"
POLICIES = "policies"
DRAFTERS = "drafters"
FLEETS = "fleets"
EXPERIMENTS = "experiments"
TOPICS = (JOBS, VERSIONS, DEPLOYMENTS, TURNS, POLICIES, DRAFTERS, FLEETS, EXPERIMENTS)


class Subscription(Protocol):
    """Some topics, watched from the moment when the subscription was made."""

    async def wait(self, timeout_seconds: float) -> bool:
        """True as soon as something may have changed since the last True; False after the time-out."""
        ...


class Events(Protocol):
    """Publish and subscribe by topic."""

    async def publish(self, topic: str, data: Mapping[str, Any] | None = None) -> None:
        """Wake those who watch ``topic``; call it after the commit. A failed transport is only counted.

        ``data`` is for people who watch the transport; waiting code does not see it.
        """
        ...

    def subscribe(self, topics: Collection[str]) -> AbstractAsyncContextManager[Subscription]:
        """Watch ``topics``. Subscribe, then read the state, then wait: so no change is missed."""
        ...

    async def close(self) -> None:
        """End background work and connections."""
        ...


def check_topics(topics: Collection[str]) -> None:
    """Raise ValueError for a topic that does not exist: a typing error would silence a wake-up for good."""
    for topic in topics:
        if topic not in TOPICS:
            raise ValueError(f"'{topic}' is not a topic")
