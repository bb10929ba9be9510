"""ExperimentParts: everything about live Experiments that a gateway process runs, put together."""

from dataclasses import dataclass

from core.config.schema import HoneConfig
from gateway.experiments.desk import ExperimentDesk
from gateway.experiments.exchange import RoutedExperiments
from gateway.experiments.failures import FailureLog
from gateway.experiments.metrics import ExperimentMetrics
from gateway.experiments.watcher import GuardrailWatcher
from gateway.experiments.webhooks import Webhooks
from gateway.metrics import GatewayMetrics
from gateway.routing import Routing
from store.store import Store


@dataclass(frozen=True)
class ExperimentParts:
    """The parts; ``start`` after the routing, ``stop`` before it."""

    live: RoutedExperiments
    desk: ExperimentDesk
    watcher: GuardrailWatcher
    failures: FailureLog
    webhooks: Webhooks
    metrics: ExperimentMetrics

    @classmethod
    def build(
        cls, *, config: HoneConfig, store: Store, routing: Routing, gateway_metrics: GatewayMetrics
    ) -> "ExperimentParts":
        """All of them for one process."""
        metrics = ExperimentMetrics(gateway_metrics.registry)
        failures = FailureLog(store=store, metrics=metrics)
        live = RoutedExperiments(config=config, store=store, routing=routing, failures=failures, metrics=metrics)
        webhooks = Webhooks(config=config, metrics=metrics)
        desk = ExperimentDesk(store=store, webhooks=webhooks, metrics=metrics)
        watcher = GuardrailWatcher(config=config, store=store, live=live, desk=desk, metrics=metrics)
        return cls(live=live, desk=desk, watcher=watcher, failures=failures, webhooks=webhooks, metrics=metrics)

    async def start(self) -> None:
        """Follow and watch what runs."""
        await self.failures.start()
        await self.live.start()
        await self.watcher.start()

    async def stop(self) -> None:
        """Stop, in the opposite order."""
        await self.watcher.stop()
        await self.live.stop()
        await self.failures.stop()
        await self.webhooks.stop()
