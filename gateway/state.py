"""Everything that a route needs, made once per process."""

from dataclasses import dataclass

from core.config.schema import HoneConfig
from gateway.auth import Authenticator
from gateway.episodes import Episodes
from gateway.idempotency import RecordedAnswers
from gateway.metrics import GatewayMetrics
from gateway.recorder import Recorder
from gateway.release import ReleaseDesk
from gateway.routing import Routing
from gateway.upstream.aiohttp_client import Upstream
from store.store import Store


@dataclass(frozen=True)
class Gateway:
    """The gateway's parts; put together in ``gateway/app.py`` and nowhere else."""

    config: HoneConfig
    store: Store
    metrics: GatewayMetrics
    authenticator: Authenticator
    routing: Routing
    episodes: Episodes
    answers: RecordedAnswers
    recorder: Recorder
    upstream: Upstream
    releases: ReleaseDesk

    async def start(self) -> None:
        """Start every long-running part; the recorder first, because the others feed it."""
        await self.recorder.start()
        await self.upstream.start()
        await self.routing.start()

    async def stop(self) -> None:
        """Stop in the opposite order; the recorder drains last."""
        await self.routing.stop()
        await self.upstream.stop()
        await self.recorder.stop()
