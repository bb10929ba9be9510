"""ShadowParts: everything about shadows that a gateway process runs, put together."""

from dataclasses import dataclass

from core.config.schema import HoneConfig
from gateway.metrics import GatewayMetrics
from gateway.routing import Routing
from gateway.shadow.desk import ShadowDesk
from gateway.shadow.ledger import ShadowLedger
from gateway.shadow.metrics import ShadowMetrics
from gateway.shadow.mirror import ShadowMirror
from gateway.upstream.base import Upstream
from store.store import Store


@dataclass(frozen=True)
class ShadowParts:
    """The parts; ``start`` before what feeds them, ``stop`` after it."""

    mirror: ShadowMirror
    ledger: ShadowLedger
    desk: ShadowDesk

    @classmethod
    def build(
        cls,
        *,
        config: HoneConfig,
        store: Store,
        routing: Routing,
        upstream: Upstream,
        gateway_metrics: GatewayMetrics,
    ) -> "ShadowParts":
        """All of them for one process."""
        metrics = ShadowMetrics(gateway_metrics.registry)
        ledger = ShadowLedger(store=store, metrics=metrics, flush_seconds=config.shadow.flush_seconds)
        mirror = ShadowMirror(config=config, routing=routing, upstream=upstream, ledger=ledger, metrics=metrics)
        return cls(mirror=mirror, ledger=ledger, desk=ShadowDesk(store=store))

    async def start(self) -> None:
        """Mirror and write."""
        await self.ledger.start()
        await self.mirror.start()

    async def stop(self) -> None:
        """Stop, in the opposite order."""
        await self.mirror.stop()
        await self.ledger.stop()
