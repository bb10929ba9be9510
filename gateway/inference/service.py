"""The one way to a model: limits, Episode, routing, the answer, and what is kept of it."""

import hashlib
import time
from collections.abc import Mapping
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Protocol

import msgspec
import structlog

from core import ids
from core.errors import Conflict, NotFound
from core.experiment import Experiment
from gateway.capture.record import CapturedCall
from gateway.episodes import Episodes, HeldEpisode
from gateway.idempotency import LARGEST_REPLAY_BYTES, RecordedAnswer, RecordedAnswers
from gateway.inference.base import Call
from gateway.inference.dispatch import Dispatch
from gateway.inference.exact import Continuation, ExactTurns
from gateway.inference.exchange import EngineExchange
from gateway.inference.replay import ReplayedExchange
from gateway.inference.request import EPISODE_METADATA, CapturePlan, InferenceRequest
from gateway.inference.target import Begun, Sent, Target
from gateway.inference.threads import Link, Thread, delta_digests, message_digest, stream_digests, thread_of
from gateway.limits.base import Admission, Limits
from gateway.metrics import GatewayMetrics
from gateway.recorder import Recorder
from gateway.upstream.base import BegunResponse

log = structlog.get_logger(__name__)


class Experiments(Protocol):
    """Who may send a request to another version or Variant than its name means."""

    running: Mapping[str, Experiment] | None
    """Policy → what runs; None, where nothing does, costs a request one look."""

    def open(self, service: "InferenceService", call: Call, request: InferenceRequest) -> "OpenExchange":
        """The block of one call while something runs."""


class NoExperiments:
    """Nothing ever runs."""

    running: Mapping[str, Experiment] | None = None

    def open(self, service: "InferenceService", call: Call, request: InferenceRequest) -> "OpenExchange":
        """See ``Experiments``."""
        return OpenExchange(service, call, request)


class Shadows(Protocol):
    """Who has a sample of answered requests answered again by a candidate."""

    running: Mapping[str, tuple[Experiment, ...]] | None
    """Policy → what runs; None, where nothing does, costs an answer one look."""

    def offer(self, request: InferenceRequest, call: CapturedCall, held: HeldEpisode) -> None:
        """An answer that was handed over; returns at once and never raises."""


class NoShadows:
    """Nothing ever runs."""

    running: Mapping[str, tuple[Experiment, ...]] | None = None

    def offer(self, request: InferenceRequest, call: CapturedCall, held: HeldEpisode) -> None:
        """See ``Shadows``."""


class InferenceService:
    """Implements ``gateway.inference.base.Inference``. A failing capture is counted and never shows in an answer."""

    def __init__(
        self,
        *,
        limits: Limits,
        episodes: Episodes,
        answers: RecordedAnswers,
        dispatch: Dispatch,
        exact: ExactTurns,
        recorder: Recorder,
        metrics: GatewayMetrics,
        experiments: "Experiments | None" = None,
        shadows: "Shadows | None" = None,
    ) -> None:
        self.shadows: Shadows = shadows or NoShadows()
        self.experiments: Experiments = experiments or NoExperiments()
        self.limits = limits
        self.episodes = episodes
        self.answers = answers
        self.dispatch = dispatch
        self.exact = exact
        self.recorder = recorder
        self.metrics = metrics

    def exchange(self, call: Call, request: InferenceRequest) -> "OpenExchange":
        """Send a request; inside the block its answer has begun. Raises as ``Inference.exchange``."""
        if self.experiments.running is None:
            return OpenExchange(self, call, request)
        return self.experiments.open(self, call, request)


class OpenExchange:
    """The block of one call. A class, because a generator-based context manager costs several microseconds.

    Where nothing has to be waited for it can do without the block, and its caller without a task: ``begin``,
    ``arrived`` when the engine's answer is there, ``finish``.
    """

    __slots__ = (
        "_admission",
        "_begun",
        "_call",
        "_clock",
        "_exact",
        "_exchange",
        "_held",
        "_link",
        "_repeated",
        "_request",
        "_sent",
        "_service",
        "_stack",
        "_started_at",
        "_thread",
        "stream",
    )

    def __init__(self, service: InferenceService, call: Call, request: InferenceRequest) -> None:
        self._service = service
        self._call = call
        self._request = request
        self.stream = request.stream
        self._started_at = time.time()
        self._clock = time.perf_counter()
        self._stack: AsyncExitStack | None = None
        self._admission: Admission | None = None
        self._held: HeldEpisode | None = None
        self._begun: Begun | None = None
        self._sent: Sent | None = None
        self._exchange: EngineExchange | None = None
        self._repeated: RecordedAnswer | None = None
        self._thread: Thread | None = None
        self._link: Link | None = None
        self._exact: Continuation | None = None

    async def __aenter__(self) -> EngineExchange | ReplayedExchange:
        """Everything up to the head of the engine's response."""
        try:
            if self._call.idempotency_key is not None:
                replayed = await self._repeat(self._call.idempotency_key)
                if replayed is not None:
                    return replayed
            return await self._open()
        except BaseException:
            self._release()
            if self._stack is not None:
                await self._stack.aclose()
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Give everything back, and record what was answered."""
        exchange = self._exchange
        try:
            self.record()
            if exchange is not None and self.stream:
                await exchange.finish_reading()
        finally:
            self._release()
            if self._stack is not None:
                await self._stack.aclose()

    async def _repeat(self, key: str) -> ReplayedExchange | None:
        """Wait until no other request has the key, and give its answer again if there is one.

        An answer that another process gave, or that is too long to be kept, is not given again: the model is asked,
        and the new answer has the ids of the first. Raises Conflict when the key was used for another request.
        """
        service, tenant_id = self._service, self._call.caller.key.tenant_id
        self._stack = AsyncExitStack()
        await self._stack.enter_async_context(service.answers.one_at_a_time(tenant_id, key))
        found = service.answers.recall(tenant_id, key, self._request.choices)
        if found is None:
            found = await service.episodes.answered_under(tenant_id, key, self._request.choices)
        if found is not None and found.request_digest not in (b"", _digest(self._request.body)):
            raise Conflict(
                "this idempotency key was used for another request",
                hint="use a new key for a new request",
                param="idempotency-key",
            )
        if found is not None and found.sent is not None and isinstance(found.target, Target):
            return ReplayedExchange(found, found.sent, found.target)
        self._repeated = found
        return None

    def begin(self) -> BegunResponse | None:
        """Write the request to an engine if nothing has to be waited for; None: the block is to be entered.

        Afterwards either ``arrived`` and ``finish`` are to be called, or ``finish`` alone, or the block entered,
        which goes on from here. Raises as ``Inference.exchange``.
        """
        service, call, request = self._service, self._call, self._request
        if call.idempotency_key is not None:
            return None
        try:
            self._admission = service.limits.admit_now(
                call.caller, request.model_text, stream=request.stream, tokens=request.most_tokens
            )
            if self._admission is None:
                return None
            held = self._held = self._known_episode()
            if held is None:
                return None
            plan = self._plan(held)
            if self._exact is None:
                self._begun = service.dispatch.begin(self._request, held, plan)
        except BaseException:
            self._release()
            raise
        return None if self._begun is None else self._begun.response

    def arrived(self, first: bytes) -> EngineExchange:
        """The successful answer to what ``begin`` wrote: ``first`` is all of it, or the beginning of a stream."""
        begun, self._begun = self._begun, None
        assert begun is not None and self._held is not None
        return self._answer(Sent(begun.target, begun.response, first), self._held)

    def record(self) -> None:
        """Settle and record what was answered, once."""
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            self._settle(exchange)
            if exchange.answered:
                self._record(exchange)

    def finish(self) -> None:
        """Record what was answered, and give everything back."""
        try:
            self.record()
        finally:
            self._release()

    async def _open(self) -> EngineExchange:
        service, call, request = self._service, self._call, self._request
        caller = call.caller
        if self._admission is None:
            self._admission = await service.limits.admit(
                caller, request.model_text, stream=request.stream, tokens=request.most_tokens
            )
        held = self._held
        if held is None:
            held = await self._episode()
        plan = self._plan(held)
        # From here on the failure of what was begun is the dispatch's.
        begun, self._begun = self._begun, None
        sent = await service.dispatch.send(self._request, held, plan, self._exact, caller.may_use, begun)
        return self._answer(sent, held)

    def _answer(self, sent: Sent, held: HeldEpisode) -> EngineExchange:
        service, repeated = self._service, self._repeated
        self._sent = sent
        service.episodes.began(held, sent.target.policy, sent.target.version)
        assert self._admission is not None
        exchange = self._exchange = EngineExchange(
            self._call,
            self._request,
            sent,
            held=held,
            turn_ids=self._turn_ids(held) if repeated is None else repeated.turn_ids,
            admission=self._admission,
            metrics=service.metrics,
            started_at=self._started_at,
            clock=self._clock,
        )
        if repeated is not None:
            exchange.index = repeated.index
        return exchange

    def _follow(self) -> Thread | None:
        """The conversation; nothing is derived from the messages of a call of which no content is kept."""
        call = self._call
        if self._thread is None and (call.consent or call.store):
            self._thread = thread_of(call.caller.key.tenant_id, self._request, call.surface)
        return self._thread

    def _known_episode(self) -> HeldEpisode | None:
        """The Episode, where this process knows by itself which one it is."""
        episodes, key, thread = self._service.episodes, self._call.caller.key, self._follow()
        if self._episode_id() is not None:
            return None
        if thread is None or not thread.answered:
            return episodes.open(key)
        found = episodes.recall(key, thread)
        if found is None:
            return None
        held, self._link = found
        return held

    async def _episode(self) -> HeldEpisode:
        """The Episode, whoever knows which one it is."""
        thread, named = self._follow(), self._episode_id()
        if named is None and (thread is None or not thread.answered):
            return self._service.episodes.open(self._call.caller.key)
        if self._repeated is None:
            return await self._find_episode(named)
        return await self._find_repeated(named)

    def _plan(self, held: HeldEpisode) -> CapturePlan:
        """What is asked for beside the answer, by what may be kept of it."""
        call, request = self._call, self._request
        if held.new and not call.consent:
            # Who opens a conversation without consent has withdrawn it for what follows.
            held.may_train = False
        elif not held.may_train:
            call.may_train = False
        self._exact = self._service.exact.begin(call, request, held, self._thread)
        return request.plan if call.consent or call.store else request.plan.without_content()

    def _turn_ids(self, held: HeldEpisode) -> tuple[str, ...]:
        """Ids of the Turns; the first one of an Episode is named like it."""
        choices = self._request.choices
        if choices == 1 and held.new and not held.named_first_turn:
            held.named_first_turn = True
            return (f"{ids.TURN}_{held.id.partition('_')[2]}",)
        return tuple([ids.new_id(ids.TURN) for _ in range(choices)])

    async def _find_repeated(self, named: str | None) -> HeldEpisode:
        """The Episode of the first answer; where that takes no more Turns, this request is a new one."""
        try:
            return await self._find_episode(named)
        except (Conflict, NotFound):
            # The client named no Episode: it must not be told that there is none.
            self._repeated = None
            return await self._find_episode(self._episode_id())

    async def _find_episode(self, named: str | None) -> HeldEpisode:
        """The Episode that is named, else the one that the messages continue."""
        episodes, key, thread = self._service.episodes, self._call.caller.key, self._thread
        if thread is None:
            return await episodes.find(key, named)
        if named is None:
            held, self._link = await episodes.continued(key, thread)
            return held
        held = await episodes.find(key, named)
        if held.next_index > 0:
            self._link = await episodes.link_of(key, thread)
        return held

    def _episode_id(self) -> str | None:
        if self._repeated is not None:
            return self._repeated.episode_id
        if self._call.episode_id is not None:
            return self._call.episode_id
        if not self._request.metadata:
            return None
        named = self._request.metadata.get(EPISODE_METADATA)
        return named if isinstance(named, str) and named else None

    def _settle(self, exchange: EngineExchange) -> None:
        usage, target = exchange.usage, exchange.target
        if self._admission is None or not exchange.answered:
            return
        answered_by = None if target.fallback_from is None else target.policy
        if usage is not None:
            # An engine's counts are not to be trusted with what others may use.
            self._admission.settle(
                prompt_tokens=max(0, usage.prompt_tokens),
                completion_tokens=max(0, usage.completion_tokens),
                answered_by=answered_by,
            )
        else:
            # A stream that was left before its usage came: its events are about as many as its tokens.
            self._admission.settle(
                prompt_tokens=self._request.prompt_tokens_estimate,
                completion_tokens=exchange.events_seen,
                answered_by=answered_by,
            )

    def _record(self, exchange: EngineExchange) -> None:
        """Hand over to the recorder; nothing that goes wrong here may reach the client."""
        service, call = self._service, self._call
        try:
            if exchange.index < 0:
                exchange.index = exchange.held.take_index()
            captured = exchange.captured()
            if exchange.target.weights is not None:
                service.dispatch.settle_spans(captured, exchange)
            if self._link is not None and self._link.episode_id == exchange.episode_id:
                captured.parent_turn_id = self._link.turn_id
            if call.compacts is not None:
                captured.parent_turn_id = call.compacts
            if self._thread is not None and exchange.broken is None:
                captured.threads = self._threads_of(self._thread, exchange)
            recorded = service.recorder.record(captured)
            if recorded:
                exchange.held.new = False
            if service.shadows.running is not None:
                service.shadows.offer(self._request, captured, exchange.held)
            if self._exact is not None and captured.threads:
                self._exact.threads = captured.threads
                service.exact.remember(self._exact, exchange.target, exchange.payloads)
            if recorded and call.idempotency_key is not None and exchange.broken is None:
                sent = exchange.sent
                answer = RecordedAnswer(
                    exchange.episode_id,
                    exchange.index,
                    exchange.turn_ids,
                    time.monotonic(),
                    request_digest=_digest(self._request.body),
                    sent=sent if sent is not None and len(sent) <= LARGEST_REPLAY_BYTES else None,
                    target=exchange.target,
                )
                service.answers.remember(call.caller.key.tenant_id, call.idempotency_key, answer)
        except Exception as error:
            service.metrics.capture_failures.labels("hand_over").inc()
            log.exception("capture_failed", request_id=call.request_id, error=repr(error))

    def _threads_of(self, thread: Thread, exchange: EngineExchange) -> list[str]:
        """Remember by which conversations the answers will be recognised; one digest per choice."""
        try:
            if self._request.stream and exchange.deltas is not None:
                digests = delta_digests(thread, exchange.deltas)
            elif self._request.stream:
                digests = stream_digests(thread, exchange.payloads)
            else:
                digests = {choice: message_digest(thread, raw) for choice, raw in exchange.messages.items()}
        except (msgspec.DecodeError, RecursionError, TypeError, ValueError) as error:
            # Whatever the engine sent, the Turn is judged when it is built.
            log.warning("answer_unreadable", request_id=self._call.request_id, error=str(error))
            return []
        found = []
        for choice, turn_id in enumerate(exchange.turn_ids):
            digest = digests.get(choice)
            if digest is not None:
                self._service.episodes.answered(exchange.held, digest, turn_id)
            found.append("" if digest is None else digest.hex())
        return found

    def _release(self) -> None:
        if self._begun is not None:
            self._service.dispatch.close(self._begun)
            self._begun = None
        if self._sent is not None:
            self._service.dispatch.close(self._sent)
            self._sent = None
        if self._admission is not None:
            self._admission.release()
            self._admission = None


def _digest(body: bytes) -> bytes:
    return hashlib.blake2b(body, digest_size=16).digest()
