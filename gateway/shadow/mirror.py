"""ShadowMirror: takes answered requests, and has a sample of them answered again by a candidate.

``running`` is None while no shadow runs: all that a request then pays is one look at it. Everything else happens
after the answer was handed over, in a bounded queue and a few tasks of its own.
"""

import asyncio
import time
from collections.abc import Collection, Mapping

import msgspec
import structlog

from core.background import cancelled
from core.config.schema import HoneConfig
from core.errors import HoneError
from core.experiment import Experiment
from core.shadow import ShadowPair, ShadowStatus
from core.shadow_scoring import answer_events, score_pair
from core.turn import Turn
from gateway.capture.record import CapturedCall
from gateway.capture.turns import build_turns
from gateway.episodes import HeldEpisode
from gateway.inference.request import InferenceRequest
from gateway.routing import Routing
from gateway.shadow.call import Mirrored, MirroredCalls, NotMirrored
from gateway.shadow.eligible import Skip, domain_of, reason_against
from gateway.shadow.ledger import ShadowLedger
from gateway.shadow.metrics import ShadowMetrics
from gateway.upstream.base import Unreachable, Upstream

log = structlog.get_logger(__name__)


class ShadowMirror:
    """Implements ``gateway.inference.service.Shadows``."""

    def __init__(
        self,
        *,
        config: HoneConfig,
        routing: Routing,
        upstream: Upstream,
        ledger: ShadowLedger,
        metrics: ShadowMetrics,
    ) -> None:
        self._limits = config.shadow
        self._ledger = ledger
        self._metrics = metrics
        self._calls = MirroredCalls(limits=config.shadow, routing=routing, upstream=upstream)
        self._queue: asyncio.Queue[Mirrored] = asyncio.Queue(config.shadow.queue)
        self._scoring = asyncio.Lock()
        self._tasks: list[asyncio.Task[None]] = []
        self.running: Mapping[str, tuple[Experiment, ...]] | None = None
        """Policy → its shadows; None: there are none."""

    async def start(self) -> None:
        """Mirror from now on."""
        self._tasks = [
            asyncio.create_task(self._work(), name=f"shadow-{number}") for number in range(self._limits.concurrency)
        ]

    async def stop(self) -> None:
        """Mirror no more; what waits is left out."""
        self.running = None
        for task in self._tasks:
            await cancelled(task)
        self._tasks = []
        while not self._queue.empty():
            self._ledger.give_back(self._queue.get_nowait().experiment.id, Skip.STOPPED)

    def follow(self, experiments: Collection[Experiment]) -> None:
        """Experiments that run now, of whatever kind."""
        shadows = [one for one in experiments if one.kind == "shadow"]
        running: dict[str, tuple[Experiment, ...]] = {}
        for one in shadows:
            running[one.policy] = (*running.get(one.policy, ()), one)
        if running != (self.running or {}):
            self.running = running or None
            self._metrics.running.set(len(shadows))
            self._ledger.follow(shadows)

    def offer(self, request: InferenceRequest, call: CapturedCall, held: HeldEpisode) -> None:
        """An answered request; returns at once and never raises."""
        for experiment in (self.running or {}).get(request.model.name, ()):
            try:
                self._offer(experiment, request, call, held)
            except Exception as error:
                self._metrics.failures.labels("offer").inc()
                log.exception("shadow_offer_failed", experiment_id=experiment.id, error=repr(error))

    def _offer(
        self, experiment: Experiment, request: InferenceRequest, call: CapturedCall, held: HeldEpisode
    ) -> None:
        reason = reason_against(experiment, request, call, held, self._limits)
        if reason is None and self._queue.full():
            reason = Skip.QUEUE_FULL
        if reason is None:
            reason = self._ledger.reserve(experiment)
        if reason is not None:
            self._ledger.skip(experiment.id, reason)
            return
        self._queue.put_nowait(Mirrored(experiment, request, call, domain_of(request)))

    async def _work(self) -> None:
        while True:
            mirrored = await self._queue.get()
            experiment_id = mirrored.experiment.id
            try:
                pair = await self._mirror(mirrored)
            except NotMirrored as error:
                self._ledger.give_back(experiment_id, error.reason)
            except asyncio.CancelledError:
                self._ledger.give_back(experiment_id, Skip.STOPPED)
                raise
            except Exception as error:
                # A fault of this side is none of the candidate's.
                self._ledger.give_back(experiment_id, Skip.INTERNAL)
                self._metrics.failures.labels("mirror").inc()
                log.exception("shadow_failed", experiment_id=experiment_id, error=repr(error))
            else:
                self._ledger.add(pair, mirrored.call.tenant_id)

    async def _mirror(self, mirrored: Mirrored) -> ShadowPair:
        experiment = mirrored.experiment
        if not any(one.id == experiment.id for one in (self.running or {}).get(experiment.policy, ())):
            raise NotMirrored(Skip.STOPPED)
        route = self._calls.route(experiment)
        began = time.perf_counter()
        try:
            async with asyncio.timeout(self._limits.timeout_seconds):
                answer = await self._calls.answer(mirrored, route)
        except (HoneError, Unreachable, TimeoutError) as error:
            log.info("shadow_candidate_failed", experiment_id=experiment.id, error=f"{type(error).__name__}: {error}")
            answer = None
        seconds = time.perf_counter() - began
        self._metrics.seconds.labels(experiment.id).observe(seconds)
        async with self._scoring:
            # One at a time, beside the loop: a client's schema may take a while.
            return await asyncio.to_thread(_pair, mirrored, answer, seconds)


def _readable(answer: CapturedCall) -> list[Turn]:
    """The candidate's Turn; empty where its answer is none: that is its own failure."""
    try:
        return build_turns(answer)
    except (msgspec.DecodeError, TypeError, ValueError, RecursionError) as error:
        log.info("shadow_answer_unreadable", deployment_id=answer.deployment_id, error=type(error).__name__)
        return []


def _pair(mirrored: Mirrored, answer: CapturedCall | None, seconds: float) -> ShadowPair:
    """The pair of a client's answer and the candidate's, scored; None: the candidate gave none."""
    experiment, call = mirrored.experiment, mirrored.call
    primary_arm, candidate_arm = experiment.arms[:2]
    primary = build_turns(call)[0]
    pair = ShadowPair(
        id=f"{experiment.id}:{primary.id}",
        experiment_id=experiment.id,
        policy=experiment.policy,
        domain=mirrored.domain,
        turn_id=primary.id,
        episode_id=call.episode_id,
        status=ShadowStatus.FAILED,
        primary_arm=primary_arm.name,
        candidate_arm=candidate_arm.name,
        primary_seconds=call.total_seconds,
        primary_tokens=primary.usage.completion_tokens or call.completion_tokens,
        primary_events=answer_events(primary, experiment.guardrails),
        candidate_seconds=seconds,
    )
    turns = [] if answer is None else _readable(answer)
    if not turns:
        # The rules of a score need only the client's answer to tell what it was worth.
        alone = score_pair(primary, primary)
        scored = {} if alone is None else {"primary_score": alone.primary, "judged_by": alone.judged_by}
        return pair.model_copy(update=scored | {"candidate_events": ("error",)})
    candidate = turns[0]
    score = score_pair(primary, candidate)
    found: dict[str, object] = {
        "status": ShadowStatus.UNSCORED if score is None else ShadowStatus.SCORED,
        "candidate_tokens": candidate.usage.completion_tokens,
        "candidate_seconds": candidate.timing.total_seconds,
        "candidate_events": answer_events(candidate, experiment.guardrails),
    }
    if score is not None:
        found |= {
            "primary_score": score.primary,
            "candidate_score": score.candidate,
            "judged_by": score.judged_by,
        }
    return pair.model_copy(update=found)
