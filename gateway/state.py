"""Everything that a route needs, made once per process."""

from collections.abc import Mapping
from dataclasses import dataclass

from core.config.schema import HoneConfig
from gateway.auth import Authenticator
from gateway.episodes import Episodes
from gateway.erasure.desk import ErasureDesk
from gateway.experiments.parts import ExperimentParts
from gateway.hosted_tools.base import HostedTools
from gateway.http.base import HotHandler
from gateway.idempotency import RecordedAnswers
from gateway.inference.service import InferenceService
from gateway.limits.base import Limits
from gateway.metrics import GatewayMetrics
from gateway.outside.models import OutsideModels
from gateway.recorder import Recorder
from gateway.registry.desk import VersionDesk
from gateway.release import ReleaseDesk
from gateway.routing import Routing
from gateway.shadow.parts import ShadowParts
from gateway.sibling_metrics import SiblingMetrics
from gateway.upstream.base import Upstream
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
    limits: Limits
    outside: OutsideModels
    inference: InferenceService
    hot_handlers: Mapping[str, HotHandler]
    """Path → what answers POST there, past FastAPI."""
    releases: ReleaseDesk
    versions: VersionDesk
    erasure: ErasureDesk
    hosted_tools: HostedTools
    experiments: ExperimentParts
    shadow: ShadowParts
    siblings: SiblingMetrics | None = None
    """Metrics of all processes that share the port; None: this is the only one."""

    async def start(self) -> None:
        """Start every long-running part; the recorder first, because the others feed it."""
        await self.recorder.start()
        await self.upstream.start()
        await self.outside.start()
        await self.limits.start()
        await self.hosted_tools.start()
        await self.routing.start()
        await self.shadow.start()
        await self.experiments.start()
        await self.erasure.sweep.start()
        if self.siblings is not None:
            await self.siblings.start()

    async def stop(self) -> None:
        """Stop in the opposite order; the recorder drains last."""
        if self.siblings is not None:
            await self.siblings.stop()
        await self.erasure.sweep.stop()
        await self.experiments.stop()
        await self.shadow.stop()
        await self.routing.stop()
        await self.hosted_tools.stop()
        await self.limits.stop()
        await self.outside.stop()
        await self.upstream.stop()
        await self.recorder.stop()
