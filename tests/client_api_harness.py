"""The client routes that FastAPI serves, under real uvicorn and before a real store, without the hot path."""

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import aiohttp
import msgspec
import uvicorn
from fastapi import FastAPI
from openai import AsyncOpenAI
from prometheus_client import CollectorRegistry

from core import ids
from core.access import ApiKey, Scope, Tenant, hash_key, mint_key
from core.config.schema import HoneConfig
from core.deployment import DeploymentStatus
from core.policy import Base, Policy
from core.turn import Turn
from gateway import episodes_api, feedback_api
from gateway.auth import Authenticator
from gateway.capture.record import CapturedCall
from gateway.capture.stored import store_completion
from gateway.episodes import Episodes
from gateway.errors import install_error_handlers
from gateway.metrics import GatewayMetrics
from gateway.middleware import GatewayMiddleware
from gateway.openai_api import passthrough, stored
from gateway.outside.models import OutsideModels
from gateway.routing import Routing
from gateway.upstream.aiohttp_client import AiohttpUpstream
from serving.engines.fake import FakeEngineServer
from store.store import Store
from tests import nouns
from tests.gateway_harness import QUIET, served_by
from tests.unlimited import Unlimited

BASE = "base"
POLICY = "coder"
TENANTS = ("ten_a", "ten_b")


class Recorded:
    """A recorder that has nothing left to write, or that cannot write."""

    def __init__(self) -> None:
        self.durable = True

    async def flush_all(self, timeout_seconds: float | None = None) -> bool:
        """Whether all is durable."""
        return self.durable


@dataclass
class ClientApi:
    """Running routes and what they work on."""

    store: Store
    url: str
    http: aiohttp.ClientSession
    parts: SimpleNamespace
    keys: dict[str, str] = field(default_factory=dict)

    def client(self, key: str = "user") -> AsyncOpenAI:
        """The official client."""
        return AsyncOpenAI(api_key=self.keys.get(key, key), base_url=f"{self.url}/v1", max_retries=0)

    async def call(self, method: str, path: str, body: Any = None, key: str = "user", **headers: str) -> Any:
        """Status and decoded answer of a raw request; ``x_hone_train`` stands for ``x-hone-train``."""
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        sent |= {"authorization": f"Bearer {self.keys.get(key, key)}"}
        async with self.http.request(method, self.url + path, json=body, headers=sent) as response:
            return response.status, await response.json()

    async def add_key(self, name: str, scopes: set[Scope], tenant: str = TENANTS[0], **fields: Any) -> ApiKey:
        """A stored key whose plaintext is in ``keys``."""
        self.keys[name] = mint_key()
        values = {"id": ids.new_id(ids.KEY), "tenant_id": tenant, "name": name, "scopes": frozenset(scopes)}
        key = ApiKey(**values, key_hash=hash_key(self.keys[name]), **fields)
        async with self.store.transaction() as work:
            await work.api_keys.add(key)
        return key

    async def add_engine(self, name: str, engine: FakeEngineServer) -> None:
        """A ready replica of the Base."""
        found = nouns.deployment(id=name, base=BASE, url=engine.url, status=DeploymentStatus.READY)
        async with self.store.transaction() as work:
            await work.deployments.put(found)
        await self.parts.routing.refresh()

    async def keep(self, call: CapturedCall, turns: list[Turn]) -> None:
        """Write a recorded call as the recorder does."""
        async with self.store.transaction() as work:
            await work.turns.add_many(turns)
            await store_completion(work, call, turns)


@asynccontextmanager
async def running_client_api(store: Store, make_config: Callable[..., HoneConfig]) -> AsyncIterator[ClientApi]:
    """The routes with two tenants, a Base and a Policy."""
    config = make_config({"base.name": BASE})
    metrics = GatewayMetrics(CollectorRegistry())
    parts = SimpleNamespace(
        config=config,
        store=store,
        metrics=metrics,
        authenticator=Authenticator(store=store),
        routing=Routing(config=config, store=store, metrics=metrics),
        recorder=Recorded(),
        upstream=AiohttpUpstream(config=config),
        limits=Unlimited(),
        episodes=Episodes(config=config, store=store, metrics=metrics),
        outside=OutsideModels(config=config, metrics=metrics),
    )
    app = FastAPI(redirect_slashes=False)
    app.state.gateway = parts
    for router in (stored.router, passthrough.router, feedback_api.router, episodes_api.router):
        app.include_router(router)
    install_error_handlers(app)
    app.add_middleware(GatewayMiddleware, metrics=metrics, hot_paths={})
    async with store.transaction() as work:
        for tenant in TENANTS:
            await work.tenants.add(Tenant(id=tenant, name=tenant))
        await work.bases.put(Base(name=BASE, path="/models/base", fingerprint="f" * 64))
        await work.policies.add(Policy(name=POLICY, base=BASE))
    await parts.upstream.start()
    await parts.routing.refresh()
    async with AsyncExitStack() as stack:
        stack.push_async_callback(parts.upstream.stop)
        url = await stack.enter_async_context(served_by(uvicorn.Config(app, lifespan="off", **QUIET)))
        http = await stack.enter_async_context(aiohttp.ClientSession())
        api = ClientApi(store=store, url=url, http=http, parts=parts)
        await api.add_key("user", {Scope.INFERENCE})
        await api.add_key("trainer", {Scope.INFERENCE}, training_granted=True)
        await api.add_key("rater", {Scope.FEEDBACK})
        await api.add_key("admin", {Scope.ADMIN_WRITE})
        await api.add_key("other", {Scope.INFERENCE}, tenant=TENANTS[1])
        yield api


def chat_completion(number: int = 0, **fields: Any) -> dict[str, Any]:
    """An engine's whole answer with the fields that capture adds."""
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": "4"},
        "logprobs": {"content": [{"token": "4", "logprob": -0.1, "bytes": [52], "top_logprobs": []}]},
        "finish_reason": "stop",
        "token_ids": [52],
    }
    values = {
        "id": f"chatcmpl-{number:04}",
        "object": "chat.completion",
        "created": 1_700_000_000 + number,
        "model": "coder.v1-cccccccc",
        "choices": [choice],
        "system_fingerprint": "fp_1",
        "usage": {"prompt_tokens": 3, "completion_tokens": 1, "total_tokens": 4},
        "prompt_token_ids": [1, 2, 3],
    }
    return values | fields


def captured(number: int = 0, payloads: list[dict[str, Any]] | None = None, **fields: Any) -> CapturedCall:
    """The record of a stored chat completion; ``request`` adds to the request's body."""
    request = {"model": POLICY, "messages": [{"role": "user", "content": "2 + 2?"}], "store": True}
    request |= fields.pop("request", {})
    values: dict[str, Any] = {
        "endpoint": "chat.completions",
        "surface": "chat.completions",
        "policy": POLICY,
        "version": 1,
        "variant": "standard",
        "deployment_id": "dep_a",
        "episode_id": f"ep_{number:04}",
        "opens_episode": True,
        "index": 0,
        "tenant_id": TENANTS[0],
        "key_id": "key_a",
        "turn_ids": [f"turn_{number:04}"],
        "request_id": f"req_{number:04}",
        "idempotency_key": None,
        "consent": False,
        "stored": True,
        "redact": False,
        "started_at": 1_700_000_000.0 + number,
        "total_seconds": 0.5,
        "public_model": "coder@1",
    }
    bodies = [chat_completion(number)] if payloads is None else payloads
    return CapturedCall(
        request=msgspec.json.encode(request),
        payloads=[msgspec.json.encode(body) for body in bodies],
        **(values | fields),
    )


def turns_of(call: CapturedCall, **fields: Any) -> list[Turn]:
    """The Turns that the recorder would build."""
    return [
        nouns.turn(
            id=turn_id,
            choice=choice,
            tenant_id=call.tenant_id,
            episode_id=call.episode_id,
            stored=call.stored,
            trainable=call.consent,
            **fields,
        )
        for choice, turn_id in enumerate(call.turn_ids)
    ]
