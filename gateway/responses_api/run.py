"""One response from its first model call to its end, with the hosted tools that the model calls on the way."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace

import structlog

from core.compaction import compacted, over_budget
from core.config.gateway import ContextBudget
from core.errors import ContextLengthExceeded, EngineError, HoneError, InvalidRequest
from core.message import Message
from gateway.hosted_tools.base import ServerListing, ToolOutcome, ToolSession
from gateway.http.base import RawHeader
from gateway.inference.base import Call, Exchange, Inference
from gateway.inference.request import parse_request
from gateway.responses_api.calls import (
    ApprovalCall,
    CodeCall,
    FunctionCall,
    HostedShellCall,
    McpCall,
    OpenCall,
    ShellCall,
)
from gateway.responses_api.chat import chat_body
from gateway.responses_api.messages import Approval, Conversation, conversation_of, shortened
from gateway.responses_api.request import Item, ResponsesRequest
from gateway.responses_api.tools import Declared, Offer, chat_choice, offered
from gateway.responses_api.turn import ModelTurn, TurnReader, usage_of
from gateway.responses_api.writer import ResponseWriter
from serving.variant_choice import Latency

log = structlog.get_logger(__name__)

Sink = Callable[[bytes], Awaitable[None]]
"""Takes events that are ready to send; waits while the client reads slowly."""
OpenSession = Callable[[Declared], Awaitable[ToolSession]]

_REPLAYED: RawHeader = (b"x-hone-replayed", b"true")
_REFUSED_TEXT = "The user did not allow this call."
_LIMIT_TEXT = "Not run: the limit of tool calls for this answer is reached. Answer without tools."
_TIME_TEXT = "Not run: the time for this answer is over. Answer without tools."


@dataclass(frozen=True, slots=True)
class Bounds:
    """How far one response may go."""

    tool_calls: int
    seconds: float
    """From here on no hosted tool runs any more."""


@dataclass(slots=True)
class Plan:
    """What one response starts from."""

    request: ResponsesRequest
    declared: Declared
    call: Call
    items: Sequence[Item]
    """The request's own items, references resolved."""
    history: Sequence[Message]
    """The chat before them."""
    known_servers: frozenset[str]
    """MCP servers whose tools the conversation lists already."""
    bounds: Bounds
    latency: Latency | None = None
    """What the request's header asks for."""
    budget: ContextBudget | None = None
    """Older results of hosted tools leave the prompt once it would be longer; None: never."""
    last_turn: str | None = None
    """The last Turn of ``history``."""


class ResponseRun:
    """Runs one Plan. ``started`` is set once the first model call has been answered with a stream or a body.

    Whatever goes wrong before that, or without a sink, is raised; later it ends the stream with ``response.failed``.
    """

    def __init__(
        self,
        plan: Plan,
        *,
        inference: Inference,
        open_session: OpenSession,
        writer: ResponseWriter,
        sink: Sink | None,
    ) -> None:
        self._plan = plan
        self._inference = inference
        self._open_session = open_session
        self._writer = writer
        self._sink = sink
        self._session: ToolSession | None = None
        self._offer = Offer(plan.declared, {})
        self._messages: list[Message] = list(plan.history)
        self._added: list[Message] = []
        self._turns: list[ModelTurn] = []
        self._counted = (0, 0)
        """Tokens that the engine has counted, and of how many of the messages."""
        self._compacts: str | None = None
        """The Turn whose conversation was compacted for the next one."""
        self._tool_calls = 0
        self._deadline = time.monotonic() + plan.bounds.seconds
        self._call = plan.call
        self._calls: list[Call] = []
        self._replayed = False
        self.started = asyncio.Event()
        self.headers: list[RawHeader] = []
        """Of the first model call, or (without a sink) of the last one."""
        self.turn_ids: list[str] = []
        self.broken = False
        """The stream ended with a failure."""

    @property
    def response(self) -> dict[str, object]:
        """The response object as it is now."""
        return self._writer.response

    @property
    def added(self) -> tuple[Message, ...]:
        """What request and answer added to the chat."""
        return tuple(self._added)

    @property
    def episode_id(self) -> str | None:
        """The Episode, known from the first model call on."""
        return self._call.episode_id

    @property
    def consent(self) -> bool:
        """Whether all that was said may train: an Episode can withdraw for a model call what the request grants."""
        # What the first answer of a repeated call was recorded with is not known here.
        return not self._replayed and all(call.consent for call in (self._plan.call, *self._calls))

    async def run(self) -> None:
        """Answer, up to but without the last event, which ``finish`` writes."""
        try:
            async with AsyncExitStack() as stack:
                if self._plan.declared.hosted:
                    self._session = await stack.enter_async_context(await self._open_session(self._plan.declared))
                await self._answer()
        except HoneError as error:
            if self._sink is None or not self.started.is_set():
                raise
            self.broken = True
            log.warning("response_failed", response_id=self._writer.id, code=error.code, error=error.message)
            self._writer.fail(error, usage_of(self._turns))

    async def finish(self) -> None:
        """Write the last event."""
        self._writer.finish()
        await self._flush()

    async def _answer(self) -> None:
        plan, session = self._plan, self._session
        definitions = () if session is None else session.definitions()
        listings: Sequence[ServerListing] = () if session is None else session.listings
        self._offer = offered(plan.declared, definitions, listings)
        conversation = conversation_of(plan.items, name_of=self._offer.name_of)
        self._add(*conversation.messages)
        await self._settle_approvals(conversation)
        while True:
            turn = await self._ask()
            hosted = [call for call in turn.calls if call.hosted]
            self._add(turn.message)
            tokens = turn.usage.get("total_tokens") or 0
            # An engine that counts nothing leaves everything to the estimate.
            self._counted = (tokens, len(self._messages) if tokens else 0)
            if turn.finish_reason in ("length", "content_filter"):
                reason = "max_output_tokens" if turn.finish_reason == "length" else "content_filter"
                self._stop_short(reason, hosted)
                return
            limited = self._limit_text() is not None
            for call in hosted:
                self._add({"role": "tool", "tool_call_id": call.call_id, "content": await self._run_tool(call)})
            if not hosted or limited or len(hosted) < len(turn.calls):
                self._writer.complete(usage_of(self._turns))
                return
            if self._tokens_left() == 0:
                self._stop_short("max_output_tokens", [])
                return

    def _stop_short(self, reason: str, hosted: Sequence[OpenCall]) -> None:
        for call in hosted:
            call.abandon()
        self._writer.cut_short(reason, usage_of(self._turns))

    async def _ask(self) -> ModelTurn:
        """One model call, its answer read to the end."""
        async with AsyncExitStack() as stack:
            exchange = await self._enter(stack)
            await self._begin(exchange.headers)
            self.turn_ids += exchange.turn_ids
            self._replayed = self._replayed or _REPLAYED in exchange.headers
            self._call = replace(self._call, episode_id=exchange.episode_id)
            reader = TurnReader(self._writer, self._make_call)
            try:
                await self._read(exchange, reader)
            except HoneError:
                self._turns.append(reader.cut())
                raise
        turn = reader.end()
        self._turns.append(turn)
        self._writer.response["model"] = turn.model or self._plan.request.model
        await self._flush()
        return turn

    async def _read(self, exchange: Exchange, reader: TurnReader) -> None:
        if self._sink is None:
            self.headers = exchange.headers
            reader.whole(await exchange.whole())
        else:
            async for data in exchange.events():
                reader.chunk(data)
                await self._flush()
        if reader.turn.finish_reason is None:
            raise EngineError("the engine's answer has no end")

    async def _enter(self, stack: AsyncExitStack) -> Exchange:
        """Send the conversation; with ``truncation: auto``, less and less of it until it fits."""
        request = self._plan.request
        tools, choice = chat_choice(request, self._offer)
        if self._turns:
            # What was demanded of the first call would be demanded again and again.
            choice = "none" if self._limit_text() is not None or choice == "none" else "auto"
        self._compact()
        while True:
            body = chat_body(request, self._messages, tools, choice, self._tokens_left())
            call = self._numbered()
            try:
                inference_request = parse_request("chat.completions", body, self._plan.latency)
                exchange = await stack.enter_async_context(self._inference.exchange(call, inference_request))
            except InvalidRequest as error:
                fewer = shortened(self._messages) if request.truncation == "auto" and _too_long(error) else None
                if fewer is None:
                    raise
                self._messages = fewer
            else:
                self._calls.append(call)
                return exchange

    def _compact(self) -> None:
        """Take older tool results out of what the model is shown, where it would be longer than its budget.

        The response itself and what is stored of it keep them.
        """
        budget = self._plan.budget
        self._compacts = None
        if budget is None or self._session is None:
            return
        counted, since = self._counted
        if not over_budget(self._messages, budget, counted=counted, since=since):
            return
        fewer = compacted(self._messages, budget)
        if fewer is not None:
            self._messages = fewer
            self._compacts = self.turn_ids[-1] if self.turn_ids else self._plan.last_turn

    def _numbered(self) -> Call:
        """The call, with an idempotency key of its own for each model call of the response."""
        key = self._call.idempotency_key
        call = self._call if self._compacts is None else replace(self._call, compacts=self._compacts)
        if key is None or not self._turns:
            return call
        return replace(call, idempotency_key=f"{key}:{len(self._turns)}")

    async def _begin(self, headers: list[RawHeader]) -> None:
        if self.started.is_set():
            return
        self.headers = headers
        self._writer.begin()
        for listing in self._offer.listings:
            if listing.server_label not in self._plan.known_servers:
                self._write_listing(listing)
        self.started.set()
        await self._flush()

    def _write_listing(self, listing: ServerListing) -> None:
        item: Item = {"type": "mcp_list_tools", "server_label": listing.server_label, "tools": [], "error": None}
        index = self._writer.add(item)
        place = {"output_index": index, "item_id": item["id"]}
        self._writer.emit("response.mcp_list_tools.in_progress", **place)
        item["error"] = listing.error
        item["tools"] = [
            {
                "name": one.tool_name,
                "description": one.description,
                "input_schema": dict(one.parameters),
                "annotations": None if one.annotations is None else dict(one.annotations),
            }
            for one in listing.tools
        ]
        self._writer.emit(f"response.mcp_list_tools.{'completed' if listing.error is None else 'failed'}", **place)
        self._writer.done(index)

    def _make_call(self, call_id: str, name: str) -> OpenCall:
        writer, definition = self._writer, self._offer.definitions.get(name)
        if definition is None:
            return (ShellCall if name in self._offer.declared.local else FunctionCall)(writer, call_id, name)
        container = "" if self._session is None else self._session.container_id
        if definition.kind == "shell":
            return HostedShellCall(writer, call_id, name, container)
        if definition.kind == "code_interpreter":
            outputs = "code_interpreter_call.outputs" in self._plan.request.include
            return CodeCall(writer, call_id, name, container, with_outputs=outputs)
        if self._offer.needs_approval(definition):
            return ApprovalCall(writer, call_id, definition)
        return McpCall(writer, call_id, definition)

    async def _settle_approvals(self, conversation: Conversation) -> None:
        answered = {message.get("tool_call_id") for message in self._messages if message.get("role") == "tool"}
        for approval in conversation.approvals:
            if approval.call_id not in answered:
                await self._settle_approval(approval)

    async def _settle_approval(self, approval: Approval) -> None:
        function = _called(self._messages, approval.call_id)
        if function is None:
            raise InvalidRequest(
                f"there is no approval request '{approval.call_id}' in the conversation",
                hint="send 'previous_response_id' of the response that asked",
                param="input",
            )
        text = _REFUSED_TEXT if approval.reason is None else f"{_REFUSED_TEXT} {approval.reason}"
        definition = self._offer.definitions.get(str(function.get("name")))
        if approval.approve:
            if definition is None:
                raise InvalidRequest("the approved tool is not in 'tools'", param="tools")
            await self._begin([])
            call = McpCall(self._writer, approval.call_id, definition, approval.call_id)
            call.append(str(function.get("arguments") or ""))
            call.close(whole=True)
            text = await self._run_tool(call)
        self._add({"role": "tool", "tool_call_id": approval.call_id, "content": text})

    async def _run_tool(self, call: OpenCall) -> str:
        """Run one hosted tool; what the model is told of it."""
        refusal = self._limit_text()
        if refusal is not None:
            call.abandon()
            return refusal
        self._tool_calls += 1
        call.running()
        await self._flush()
        outcome = await self._outcome(call)
        call.settle(outcome)
        await self._flush()
        return outcome.text

    async def _outcome(self, call: OpenCall) -> ToolOutcome:
        arguments, session = call.parsed, self._session
        if arguments is None or session is None:
            return _failed("the arguments are not a JSON object")
        try:
            async with asyncio.timeout(self._deadline - time.monotonic()):
                return await session.run(call.name, arguments)
        except TimeoutError:
            return _failed("the time for this answer is over")
        except HoneError as error:
            log.warning("hosted_tool_failed", tool=call.name, error=error.message)
            return _failed(error.message)

    def _limit_text(self) -> str | None:
        """Why no further tool may run; None: it may."""
        if self._tool_calls >= self._plan.bounds.tool_calls:
            return _LIMIT_TEXT
        return _TIME_TEXT if time.monotonic() >= self._deadline else None

    def _tokens_left(self) -> int | None:
        limit = self._plan.request.max_output_tokens
        if limit is None:
            return None
        return max(0, limit - sum(turn.usage.get("completion_tokens") or 0 for turn in self._turns))

    def _add(self, *messages: Message) -> None:
        self._messages += messages
        self._added += messages

    async def _flush(self) -> None:
        if self._sink is not None:
            frames = self._writer.take()
            if frames:
                await self._sink(frames)


def _called(messages: Sequence[Message], call_id: str) -> dict[str, object] | None:
    for message in reversed(messages):
        for call in message.get("tool_calls") or ():
            if call.get("id") == call_id:
                function: dict[str, object] = call["function"]
                return function
    return None


def _failed(reason: str) -> ToolOutcome:
    return ToolOutcome(text=f"error: {reason}", error=reason)


def _too_long(error: InvalidRequest) -> bool:
    return isinstance(error, ContextLengthExceeded) or "context length" in error.message.lower()
