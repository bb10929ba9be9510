"""The release process: takes candidates to traffic, or ends them; one of several leads."""

import asyncio

from prometheus_client import CollectorRegistry

from core.config.schema import HoneConfig
from gateway.release_run.conductor import LEASE, Conductor, Sources
from gateway.release_run.notice import WebhookNotifier
from gateway.release_run.stored import StoredPairs, StoredSuites
from hone.processes.runner import run_process, until_stopped
from store.leadership import Leadership, owner_name
from store.store import Store


async def serve(config: HoneConfig, store: Store, _registry: CollectorRegistry, stop: asyncio.Event) -> None:
    """Take open releases further while this process leads, until ``stop`` is set."""
    section = config.experiments
    notifier = WebhookNotifier(
        secret=section.webhook_secret.get_secret_value(), timeout_seconds=section.webhook_timeout_seconds
    )
    conductor = Conductor(
        store=store,
        sources=Sources(suites=StoredSuites(), pairs=StoredPairs(), notifier=notifier),
        leadership=Leadership(store=store, name=LEASE, owner=owner_name(), seconds=config.release.lease_seconds),
    )
    await conductor.start()
    try:
        await until_stopped(stop, conductor.wait())
    finally:
        await conductor.stop()


def main() -> None:
    """Entry point of ``python -m hone.processes.release``."""
    run_process("release", serve, metrics_port=lambda config: config.release.metrics_port)


if __name__ == "__main__":
    main()
