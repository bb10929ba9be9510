"""Makes responses: from a request's body to an answer, or to a stream that a task of its own feeds."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import structlog

from core import ids
from core.config.gateway import ContextSection
from core.errors import HoneError, InvalidRequest, NotFound
from core.stored_response import StoredResponse
from core.variant import unsuffixed
from gateway.auth import Caller
from gateway.capture.redaction import load_redactor
from gateway.errors import error_body, internal_error_body
from gateway.hosted_tools.base import HostedTools, ToolSession
from gateway.inference.base import Call, Inference
from gateway.inference.request import EPISODE_METADATA
from gateway.responses_api.archive import Archive, last_container, listed_items, listed_servers
from gateway.responses_api.outbox import Outbox
from gateway.responses_api.request import Item, ResponsesRequest, parse_responses_request
from gateway.responses_api.run import Bounds, OpenSession, Plan, ResponseRun
from gateway.responses_api.tools import Declared, declared_tools
from gateway.responses_api.writer import ResponseWriter
from gateway.state import Gateway
from serving.variant_choice import Latency

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Asked:
    """One POST: who asks what, and what its headers say."""

    caller: Caller
    body: bytes
    request_id: str
    episode_id: str | None = None
    idempotency_key: str | None = None
    may_train: bool = True
    token_exact: bool | None = None
    latency: Latency | None = None
    user: str | None = None
    """The end user whom a header names."""


@dataclass(slots=True)
class Answering:
    """A response in the making. ``task`` ends when nothing more comes; cancelling it ends the model's call too."""

    request: ResponsesRequest
    run: ResponseRun
    writer: ResponseWriter
    asked: Asked
    chain: Sequence[StoredResponse]
    task: "asyncio.Task[None]" = field(init=False)
    outbox: Outbox | None = None
    """Where the events of a stream are."""


class ResponsesService:
    """The Responses API without its HTTP."""

    def __init__(
        self,
        *,
        inference: Inference,
        archive: Archive,
        hosted: HostedTools | None,
        bounds: Bounds,
        context: ContextSection | None = None,
    ) -> None:
        self._inference = inference
        self._context = context or ContextSection()
        self._hosted = hosted
        self._bounds = bounds
        self._tasks: set[asyncio.Task[None]] = set()
        self.archive = archive

    async def begin(self, asked: Asked) -> Answering:
        """Read a request and start to answer it. Raises what is wrong with it."""
        request = parse_responses_request(asked.body)
        declared = declared_tools(request.tools)
        tenant_id = asked.caller.tenant.id
        chain = await self.archive.chain(tenant_id, request.previous_response_id)
        items = await self.archive.resolved(tenant_id, request.input)
        if not items and not chain:
            raise InvalidRequest("'input' must be a string or a list of items", param="input")
        call = Call(
            caller=asked.caller,
            request_id=asked.request_id,
            surface="responses",
            episode_id=(
                asked.episode_id
                or request.metadata.get(EPISODE_METADATA)
                or (chain[-1].episode_id if chain else None)
            ),
            idempotency_key=asked.idempotency_key,
            may_train=asked.may_train,
            token_exact=asked.token_exact,
            store=request.store,
            user=asked.user,
        )
        plan = Plan(
            request=request,
            declared=declared,
            call=call,
            items=items,
            history=[message for stored in chain for message in stored.messages],
            latency=asked.latency,
            last_turn=chain[-1].turn_ids[-1] if chain and chain[-1].turn_ids else None,
            budget=self._context.budget_of(_policy_of(request.model)),
            known_servers=listed_servers(chain, items),
            bounds=Bounds(
                # A request can narrow the operator's bound and never widen it.
                min(
                    self._bounds.tool_calls,
                    self._bounds.tool_calls if request.max_tool_calls is None else request.max_tool_calls,
                ),
                self._bounds.seconds,
            ),
        )
        return self._start(plan, asked, chain)

    def _start(self, plan: Plan, asked: Asked, chain: Sequence[StoredResponse]) -> Answering:
        request = plan.request
        writer = ResponseWriter(request, ids.new_id(ids.RESPONSE), listening=request.stream)
        outbox = Outbox() if request.stream else None
        run = ResponseRun(
            plan,
            inference=self._inference,
            open_session=self._opener(asked.caller, last_container(chain)),
            writer=writer,
            sink=None if outbox is None else outbox.put,
        )
        answering = Answering(request, run, writer, asked, chain, outbox=outbox)
        answering.task = asyncio.create_task(self._answer(answering, plan.items))
        self._tasks.add(answering.task)
        answering.task.add_done_callback(self._tasks.discard)
        return answering

    async def _answer(self, answering: Answering, items: Sequence[Item]) -> None:
        run, outbox = answering.run, answering.outbox
        try:
            await run.run()
            if answering.request.store:
                redact = answering.asked.caller.tenant.redact
                await self.archive.save(_stored(answering, items), redact=redact)
            await run.finish()
        except Exception as error:
            if outbox is None or not run.started.is_set():
                raise
            log.exception("response_crashed", response_id=answering.writer.id, error=repr(error))
            run.broken = True
            body = (
                error_body(error, answering.asked.request_id)
                if isinstance(error, HoneError)
                else internal_error_body(answering.asked.request_id)
            )["error"]
            answering.writer.emit("error", code=body["code"], message=body["message"], param=body["param"])
            await outbox.put(answering.writer.take())
        finally:
            if outbox is not None:
                outbox.close()

    def _opener(self, caller: Caller, inherited: str | None) -> OpenSession:
        async def open_session(declared: Declared) -> ToolSession:
            if self._hosted is None:
                raise InvalidRequest(
                    "this installation runs no hosted tools", hint="offer functions of your own", param="tools"
                )
            try:
                if declared.container is not None or inherited is None:
                    return await self._hosted.open_session(caller, declared.container, declared.hosted)
                try:
                    return await self._hosted.open_session(caller, inherited, declared.hosted)
                except NotFound:
                    # The conversation outlived its container.
                    return await self._hosted.open_session(caller, None, declared.hosted)
            except InvalidRequest as error:
                error.param = declared.place_of(error.param)
                raise

        return open_session


def responses_service(gateway: Gateway) -> ResponsesService:
    """The service over a gateway's parts."""
    config = gateway.config.gateway
    return ResponsesService(
        inference=gateway.inference,
        archive=Archive(
            store=gateway.store,
            metrics=gateway.metrics,
            flush=gateway.recorder.flush,
            redactor=lru_cache(maxsize=1)(load_redactor),
        ),
        hosted=gateway.hosted_tools,
        bounds=Bounds(tool_calls=config.hosted_tool_calls, seconds=config.hosted_tool_seconds),
        context=gateway.config.context,
    )


def _policy_of(model: str) -> str:
    """The Policy or Base that a ``model`` field names; outside models keep their whole name."""
    return unsuffixed(model.partition("@")[0])


def _stored(answering: Answering, items: Sequence[Item]) -> StoredResponse:
    run, chain = answering.run, answering.chain
    call = answering.asked
    return StoredResponse(
        id=answering.writer.id,
        tenant_id=call.caller.tenant.id,
        episode_id=run.episode_id or "",
        previous_response_id=answering.request.previous_response_id,
        ancestors=tuple(stored.id for stored in chain),
        response=dict(answering.writer.response),
        input_items=tuple(listed_items(items, answering.writer.id)),
        messages=run.added,
        consent=run.consent,
        turn_ids=tuple(run.turn_ids),
    )
