"""LiveExperiments: which A/B Experiments run, and what a request's exposure to one means.

``running`` is None while there is none: all that a request then pays is one look at it. Read again on store events
and at short intervals; while the store is away what was read last stays in use.
"""

import asyncio
import copy
import time
from collections.abc import Callable, Collection, Mapping
from types import MappingProxyType

import structlog

from core.background import cancelled
from core.config.schema import HoneConfig
from core.experiment import Experiment
from gateway.episodes import HeldEpisode
from gateway.experiments.exposure import Exposure, exposure_of
from gateway.experiments.failures import FailureLog
from gateway.experiments.metrics import ExperimentMetrics
from gateway.inference.base import Call
from gateway.inference.request import InferenceRequest
from gateway.inference.target import Target
from gateway.routing import Routing
from store.events import EXPERIMENTS
from store.store import Store

log = structlog.get_logger(__name__)

_RETRY_SECONDS = 0.5


class LiveExperiments:
    """The running A/B Experiments of a gateway process, at most one for each Policy."""

    def __init__(
        self,
        *,
        config: HoneConfig,
        store: Store,
        routing: Routing,
        failures: FailureLog,
        metrics: ExperimentMetrics,
    ) -> None:
        self._interval = config.experiments.refresh_seconds
        self._key_secret = config.experiments.key_secret.get_secret_value().encode()
        self._domains: frozenset[str] = frozenset()
        self._store = store
        self._routing = routing
        self._failures = failures
        self._metrics = metrics
        self.running: Mapping[str, Experiment] | None = None
        """Policy → its Experiment; None: there is none."""
        self.followers: list[Callable[[Collection[Experiment]], None]] = []
        """Told of all Experiments that run, of whatever kind, at each reading."""
        self.changed = asyncio.Event()
        """Set at each change of ``running``; whoever waits clears it."""
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Read what runs, if the store answers, and follow it from then on."""
        await self._refresh_or_keep()
        self._task = asyncio.create_task(self._run(), name="experiments")

    async def stop(self) -> None:
        """Follow no more."""
        if self._task is not None:
            await cancelled(self._task)
            self._task = None

    async def refresh(self) -> None:
        """Read what runs now. Raises what the store raises."""
        async with self._store.reading() as work:
            found = await work.experiments.list(status="running")
        for follow in self.followers:
            follow(found)
        running = {one.policy: one for one in found if one.kind == "ab"}
        if running:
            async with self._store.reading() as work:
                self._domains = frozenset(domain.name for domain in await work.domains.list())
        if running != (self.running or {}):
            self.running = MappingProxyType(running) if running else None
            self._metrics.running.set(len(running))
            self.changed.set()

    def expose(self, call: Call, request: InferenceRequest, held: HeldEpisode) -> Exposure | None:
        """The part of a request's Episode in what runs; never raises: no Experiment may break an answer."""
        experiment = None if self.running is None else self.running.get(request.model.name)
        known = held.exposure
        if experiment is None:
            return None
        if isinstance(known, Exposure) and known.experiment.id == experiment.id:
            return known
        try:
            policy = self._routing.table.policies.get(experiment.policy)
            found = None
            if policy is not None:
                found = exposure_of(
                    experiment, policy, call, request, held, domains=self._domains, secret=self._key_secret
                )
        except Exception as error:
            log.exception("exposure_failed", experiment_id=experiment.id, error=repr(error))
            return None
        if found is not None:
            held.exposure = found
            if found.splits_versions and policy is not None and found.arm.version != policy.promoted_version:
                held.versions.setdefault(experiment.policy, found.arm.version)
        return found

    def fall_back(self, exposure: Exposure, held: HeldEpisode, cause: str) -> None:
        """The arm cannot answer: the Episode goes on with whatever the Policy's name means, and that is counted."""
        exposure.fell_back = True
        held.versions.pop(exposure.experiment.policy, None)
        self._metrics.fallbacks.labels(exposure.experiment.id, exposure.arm.name, cause).inc()
        log.warning(
            "arm_fell_back",
            experiment_id=exposure.experiment.id,
            arm=exposure.arm.name,
            episode_id=held.id,
            cause=cause,
        )

    def answered(self, exposure: Exposure, target: Target, held: HeldEpisode) -> Target:
        """The Target with the headers that say which arm answered, and with what the record is to say."""
        experiment = exposure.experiment
        arm = _arm_of(exposure, target)
        if arm != exposure.arm.name and not exposure.fell_back:
            own = target.fallback_from is None and target.policy == experiment.policy
            self.fall_back(exposure, held, "not_held" if own else "other_model")
        self._metrics.requests.labels(experiment.id, arm or "none").inc()
        told = copy.copy(target)
        told.exposure = exposure.seen(arm)
        told.headers = [
            *target.headers,
            (b"x-hone-experiment", experiment.id.encode()),
            (b"x-hone-arm", (arm or "none").encode("ascii", "replace")),
        ]
        if arm != exposure.arm.name:
            told.headers.append((b"x-hone-arm-assigned", exposure.arm.name.encode("ascii", "replace")))
        return told

    def failed(self, exposure: Exposure, held: HeldEpisode, request_id: str) -> None:
        """A request of the Experiment got no answer of its arm."""
        self._metrics.failures.labels(exposure.experiment.id, exposure.arm.name).inc()
        self._failures.add(exposure.seen(None), held.id, request_id, time.time(), tenant_id=held.tenant_id)

    def given_up(self, exposure: Exposure, held: HeldEpisode, request_id: str, waited: float) -> None:
        """The client of a request of the Experiment left before its answer began, after ``waited`` seconds."""
        slow = waited > exposure.experiment.guardrails.slow_seconds
        self._failures.add(
            exposure.seen(None if exposure.fell_back else exposure.arm.name),
            held.id,
            request_id,
            time.time() - waited,
            tenant_id=held.tenant_id,
            events=frozenset({"slow"} if slow else ()),
        )

    async def _run(self) -> None:
        while True:
            try:
                async with self._store.events.subscribe([EXPERIMENTS]) as subscription:
                    while True:
                        await self._refresh_or_keep()
                        await subscription.wait(self._interval)
            except Exception as error:  # noqa: BLE001 - what runs stays in use whatever failed
                log.warning("experiment_events_failed", error=f"{type(error).__name__}: {error}")
                await asyncio.sleep(_RETRY_SECONDS)

    async def _refresh_or_keep(self) -> None:
        try:
            await self.refresh()
        except Exception as error:  # noqa: BLE001 - what was read last stays in use whatever failed
            self._metrics.refreshes.labels("failed").inc()
            log.warning("experiments_not_read", error=f"{type(error).__name__}: {error}")
        else:
            self._metrics.refreshes.labels("read").inc()


def _arm_of(exposure: Exposure, target: Target) -> str | None:
    """The arm whose version (and Variant, where that is what differs) answered; None: none's."""
    if target.policy != exposure.experiment.policy:
        return None
    if exposure.splits_versions:
        # Several arms may share a version: then the assigned one answers for it.
        arms = (exposure.arm, *exposure.experiment.arms)
        return next((arm.name for arm in arms if arm.version == target.version), None)
    return next((arm.name for arm in exposure.experiment.arms if arm.variant.value == target.variant), None)
