"""A scripted model, scripted hosted tools and a small application around the Responses API, for tests."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from fastapi import FastAPI
from prometheus_client import CollectorRegistry

from core.access import ApiKey, Scope, Tenant
from core.config.gateway import ContextSection
from core.errors import AuthenticationFailed, HoneError, InvalidRequest, NotFound
from gateway.auth import Caller
from gateway.errors import install_error_handlers
from gateway.hosted_tools.base import CommandOutcome, ServerListing, ToolDefinition, ToolOutcome
from gateway.inference.base import Call
from gateway.inference.request import InferenceRequest
from gateway.metrics import GatewayMetrics
from gateway.middleware import GatewayMiddleware
from gateway.responses_api.archive import Archive
from gateway.responses_api.routes import responses_router
from gateway.responses_api.run import Bounds
from gateway.responses_api.service import ResponsesService
from store.store import Store
from tests import nouns

MODEL = "coder@3"
USAGE = {
    "prompt_tokens": 7,
    "completion_tokens": 5,
    "total_tokens": 12,
    "prompt_tokens_details": {"cached_tokens": 2},
}


@dataclass
class Said:
    """One answer of the scripted model."""

    text: str = ""
    reasoning: str = ""
    calls: Sequence[tuple[str, str]] = ()
    """Name and arguments."""
    finish: str | None = None
    error: HoneError | None = None
    """Raised instead of an answer, or (with ``text``) in the middle of it."""
    hang: bool = False
    """Never end after the text."""
    logprobs: bool = False

    @property
    def finish_reason(self) -> str:
        return self.finish or ("tool_calls" if self.calls else "stop")


def calls_of(said: Said, prefix: str) -> list[dict[str, Any]]:
    """Tool calls as chat completions show them."""
    return [
        {"id": f"{prefix}_{number}", "type": "function", "function": {"name": name, "arguments": arguments}}
        for number, (name, arguments) in enumerate(said.calls)
    ]


class FakeExchange:
    """An answer of the script."""

    def __init__(self, said: Said, number: int, call: Call) -> None:
        self._said = said
        self.call = call
        episode_id = call.episode_id or f"ep_{number}"
        self._prefix = f"call_{number}"
        self.episode_id = episode_id
        self.turn_ids = (f"turn_{number}",)
        self.headers = [
            (b"x-hone-episode-id", episode_id.encode()),
            (b"x-hone-turn-id", f"turn_{number}".encode()),
            (b"x-hone-policy-version", b"3"),
        ]
        self.left_early = True

    async def whole(self) -> bytes:
        said = self._said
        if said.hang:
            await asyncio.Event().wait()
        if said.error is not None:
            raise said.error
        self.left_early = False
        message = {"role": "assistant", "content": said.text or None, "reasoning": said.reasoning or None}
        if said.calls:
            message["tool_calls"] = calls_of(said, self._prefix)
        choice = {
            "index": 0,
            "message": message,
            "finish_reason": said.finish_reason,
            "logprobs": self._logprobs(said.text),
        }
        return json.dumps({"model": MODEL, "choices": [choice], "usage": USAGE}).encode()

    async def events(self) -> AsyncIterator[bytes]:
        said = self._said
        yield self._chunk({"role": "assistant", "content": ""})
        for piece in _pieces(said.reasoning):
            yield self._chunk({"reasoning": piece})
        for piece in _pieces(said.text):
            yield self._chunk({"content": piece}, logprobs=self._logprobs(piece))
        if said.hang:
            await asyncio.Event().wait()
        if said.error is not None:
            raise said.error
        for number, call in enumerate(calls_of(said, self._prefix)):
            function = call["function"]
            head = {"index": number, "id": call["id"], "type": "function"}
            yield self._chunk({"tool_calls": [head | {"function": {"name": function["name"], "arguments": ""}}]})
            for piece in _pieces(function["arguments"]):
                yield self._chunk({"tool_calls": [{"index": number, "function": {"arguments": piece}}]})
        yield self._chunk({}, finish=said.finish_reason)
        yield json.dumps({"model": MODEL, "choices": [], "usage": USAGE}).encode()
        self.left_early = False

    def _logprobs(self, text: str) -> dict[str, Any] | None:
        if not self._said.logprobs:
            return None
        return {"content": [{"token": text, "logprob": -0.5, "bytes": list(text.encode()), "top_logprobs": []}]}

    def _chunk(self, delta: dict[str, Any], finish: str | None = None, logprobs: Any = None) -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": finish, "logprobs": logprobs}
        return json.dumps({"model": MODEL, "choices": [choice]}).encode()


def _pieces(text: str) -> list[str]:
    return [text[start : start + 3] for start in range(0, len(text), 3)]


@dataclass
class FakeInference:
    """Answers by script, in order; keeps what it was asked."""

    script: list[Said] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    bodies: list[dict[str, Any]] = field(default_factory=list)
    exchanges: list[FakeExchange] = field(default_factory=list)
    most_messages: int | None = None
    """Longer conversations do not fit."""
    untrained: set[int] = field(default_factory=set)
    """Numbers, from 1, of the calls from which the Episode withdraws consent."""
    replays: bool = False
    """Every answer was given before."""
    stuck: bool = False
    """What was recorded does not reach the store."""
    lost: bool = False
    """What was recorded is gone."""

    async def write(self, store: Store) -> bool:
        """Write the Turns of all answers as the recorder does; whether they are durable."""
        if not self.stuck and not self.lost:
            turns = [
                nouns.turn(
                    id=turn_id,
                    episode_id=exchange.episode_id,
                    tenant_id=exchange.call.caller.tenant.id,
                    stored=exchange.call.store,
                    trainable=exchange.call.consent,
                )
                for exchange in self.exchanges
                for turn_id in exchange.turn_ids
            ]
            async with store.transaction() as work:
                await work.turns.add_many(turns)
        return not self.stuck

    @asynccontextmanager
    async def exchange(self, call: Call, request: InferenceRequest) -> AsyncIterator[FakeExchange]:
        body = json.loads(request.body)
        if self.most_messages is not None and len(body["messages"]) > self.most_messages:
            raise InvalidRequest("This model's maximum context length is 10 tokens.")
        self.calls.append(call)
        self.bodies.append(body)
        said = self.script.pop(0)
        if len(self.bodies) in self.untrained:
            call.may_train = False
        if said.error is not None and not said.text:
            raise said.error
        exchange = FakeExchange(said, len(self.bodies), call)
        if self.replays:
            exchange.headers.append((b"x-hone-replayed", b"true"))
        self.exchanges.append(exchange)
        yield exchange


CODE = ToolDefinition("code_interpreter", "code_interpreter", "Runs Python.", {"type": "object"})
SHELL = ToolDefinition("shell", "shell", "Runs commands.", {"type": "object"})
SEARCH = ToolDefinition(
    "mcp", "docs_search", "Searches.", {"type": "object"}, "docs", "search", {"readOnlyHint": True}
)


@dataclass
class FakeSession:
    """Scripted tools."""

    tools: "FakeHostedTools"
    container_id: str
    listings: Sequence[ServerListing]
    offered: Sequence[ToolDefinition]

    def definitions(self) -> Sequence[ToolDefinition]:
        return self.offered

    async def run(self, name: str, arguments: Mapping[str, Any]) -> ToolOutcome:
        self.tools.ran.append((name, dict(arguments)))
        if self.tools.hang:
            await asyncio.Event().wait()
        return self.tools.outcomes.get(name, ToolOutcome(text=f"{name} ran"))

    async def __aenter__(self) -> "FakeSession":
        return self

    async def __aexit__(self, *error: object) -> None:
        self.tools.open_sessions -= 1


@dataclass
class FakeHostedTools:
    """Opens FakeSessions."""

    outcomes: dict[str, ToolOutcome] = field(default_factory=dict)
    ran: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    containers: list[str | None] = field(default_factory=list)
    gone: set[str] = field(default_factory=set)
    hang: bool = False
    listing_error: str | None = None
    open_sessions: int = 0

    async def start(self) -> None:
        """Nothing."""

    async def stop(self) -> None:
        """Nothing."""

    async def open_session(
        self, caller: Caller, container: str | None, declarations: Sequence[Mapping[str, Any]]
    ) -> FakeSession:
        self.containers.append(container)
        if container in self.gone:
            raise NotFound(f"there is no container '{container}'")
        kinds = {str(one["type"]) for one in declarations}
        offered = [one for one in (CODE, SHELL, SEARCH) if one.kind in kinds]
        listings = []
        if "mcp" in kinds:
            listings = [ServerListing("docs", (SEARCH,))]
            if self.listing_error is not None:
                listings, offered = [ServerListing("docs", (), self.listing_error)], []
        self.open_sessions += 1
        return FakeSession(self, container or f"cntr_{len(self.containers)}", listings, offered)


SHELL_OUTCOME = ToolOutcome(
    text="hello\n[exit code 0]", commands=(CommandOutcome("hello\n", "", 0), CommandOutcome("", "slow", None))
)


class _Authenticator:
    async def authenticate(self, headers: Mapping[bytes, bytes]) -> Caller:
        tenant = headers.get(b"authorization", b"").decode().removeprefix("Bearer ")
        if not tenant.startswith("ten_"):
            raise AuthenticationFailed("no key")
        key = ApiKey(
            id="key_a",
            tenant_id=tenant,
            name="a",
            key_hash="h",
            scopes=frozenset({Scope.INFERENCE}),
            training_granted=True,
        )
        return Caller(key=key, tenant=Tenant(id=tenant, name=tenant))


def responses_app(
    inference: FakeInference,
    store: Store,
    hosted: FakeHostedTools | None,
    bounds: Bounds | None = None,
    context: ContextSection | None = None,
) -> FastAPI:
    """The routes with scripted parts; the API key is the tenant's id."""
    metrics = GatewayMetrics(CollectorRegistry())

    async def flush(timeout_seconds: float) -> bool:
        return await inference.write(store)

    service = ResponsesService(
        inference=inference,
        archive=Archive(store=store, metrics=metrics, flush=flush),
        hosted=hosted,
        bounds=bounds or Bounds(tool_calls=16, seconds=60.0),
        context=context,
    )
    app = FastAPI()
    app.state.gateway = SimpleNamespace(
        authenticator=_Authenticator(),
        metrics=metrics,
        config=SimpleNamespace(gateway=SimpleNamespace(request_read_seconds=60.0)),
        hot_handlers={},
    )
    app.include_router(responses_router(service))
    install_error_handlers(app)
    app.add_middleware(GatewayMiddleware, metrics=metrics, hot_paths={})
    return app
