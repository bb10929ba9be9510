"""The one way to a model: limits, Episode, routing, the answer, and what is kept of it."""

import hashlib
import time
from contextlib import AsyncExitStack
from types import TracebackType

import msgspec
import structlog

from core import ids
from core.errors import Conflict, NotFound
from gateway.episodes import Episodes, HeldEpisode
from gateway.idempotency import LARGEST_REPLAY_BYTES, RecordedAnswer, RecordedAnswers
from gateway.inference.base import Call
from gateway.inference.dispatch import Dispatch
from gateway.inference.exact import Continuation, ExactTurns
from gateway.inference.exchange import EngineExchange
from gateway.inference.replay import ReplayedExchange
from gateway.inference.request import EPISODE_METADATA, InferenceRequest
from gateway.inference.target import Sent, Target
from gateway.inference.threads import Link, Thread, message_digest, stream_digests, thread_of
from gateway.limits.base import Admission, Limits
from gateway.metrics import GatewayMetrics
from gateway.recorder import Recorder

log = structlog.get_logger(__name__)


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
    ) -> None:
        self.limits = limits
        self.episodes = episodes
        self.answers = answers
        self.dispatch = dispatch
        self.exact = exact
        self.recorder = recorder
        self.metrics = metrics

    def exchange(self, call: Call, request: InferenceRequest) -> "OpenExchange":
        """Send a request; inside the block its answer has begun. Raises as ``Inference.exchange``."""
        return OpenExchange(self, call, request)


class OpenExchange:
    """The block of one call. A class, because a generator-based context manager costs several microseconds."""

    __slots__ = (
        "_admission",
        "_call",
        "_exact",
        "_exchange",
        "_link",
        "_repeated",
        "_request",
        "_sent",
        "_service",
        "_stack",
        "_thread",
    )

    def __init__(self, service: InferenceService, call: Call, request: InferenceRequest) -> None:
        self._service = service
        self._call = call
        self._request = request
        self._stack: AsyncExitStack | None = None
        self._admission: Admission | None = None
        self._sent: Sent | None = None
        self._exchange: EngineExchange | None = None
        self._repeated: RecordedAnswer | None = None
        self._thread: Thread | None = None
        self._link: Link | None = None
        self._exact: Continuation | None = None

    async def __aenter__(self) -> EngineExchange | ReplayedExchange:
        """Everything up to the head of the engine's response."""
        started_at, clock = time.time(), time.perf_counter()
        try:
            if self._call.idempotency_key is not None:
                replayed = await self._repeat(self._call.idempotency_key)
                if replayed is not None:
                    return replayed
            return await self._open(started_at, clock)
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
            if exchange is not None:
                self._settle(exchange)
                if exchange.answered:
                    self._record(exchange)
                if self._request.stream:
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

    async def _open(self, started_at: float, clock: float) -> EngineExchange:
        service, call, request = self._service, self._call, self._request
        caller = call.caller
        self._admission = await service.limits.admit(
            caller, request.model_text, stream=request.stream, tokens=request.most_tokens
        )
        if call.consent or call.store:
            # Nothing is derived from the messages of a call of which no content is kept.
            self._thread = thread_of(caller.key.tenant_id, request, call.surface)
        named = self._episode_id()
        if named is None and (self._thread is None or not self._thread.answered):
            held = service.episodes.open(caller.key)
        elif self._repeated is None:
            held = await self._find_episode(named)
        else:
            held = await self._find_repeated(named)
        repeated = self._repeated
        if held.new and not call.consent:
            # Who opens a conversation without consent has withdrawn it for what follows.
            held.may_train = False
        elif not held.may_train:
            call.may_train = False
        keeps = call.consent or call.store
        plan = request.plan if keeps else request.plan.without_content()
        self._exact = service.exact.begin(call, request, held, self._thread)
        sent = self._sent = await service.dispatch.send(request, held, plan, self._exact, caller.may_use)
        service.episodes.began(held, sent.target.policy, sent.target.version)
        exchange = self._exchange = EngineExchange(
            call,
            request,
            sent,
            held=held,
            turn_ids=self._turn_ids(held) if repeated is None else repeated.turn_ids,
            admission=self._admission,
            metrics=service.metrics,
            started_at=started_at,
            clock=clock,
        )
        if repeated is not None:
            exchange.index = repeated.index
        return exchange

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
            if self._link is not None and self._link.episode_id == exchange.episode_id:
                captured.parent_turn_id = self._link.turn_id
            if self._thread is not None and exchange.broken is None:
                captured.threads = self._threads_of(self._thread, exchange)
            recorded = service.recorder.record(captured)
            if recorded:
                exchange.held.new = False
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
            if self._request.stream:
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
        if self._sent is not None:
            self._service.dispatch.close(self._sent)
            self._sent = None
        if self._admission is not None:
            self._admission.release()
            self._admission = None


def _digest(body: bytes) -> bytes:
    return hashlib.blake2b(body, digest_size=16).digest()
