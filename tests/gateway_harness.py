"""A gateway under real uvicorn, before fake engines and a real store, for tests."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import uvicorn
from fastapi import FastAPI
from openai import AsyncOpenAI
from prometheus_client import CollectorRegistry

from core import ids
from core.access import ApiKey, Scope, Tenant, hash_key, mint_key
from core.config.schema import HoneConfig
from core.deployment import Deployment, DeploymentStatus, LoadedVersion
from core.policy import Base, Policy, PolicyVersion, ProbeResult, ServingStatus
from core.turn import Turn
from core.variant import Variant
from gateway.app import create_app, http_protocol
from gateway.release import base_release
from gateway.state import Gateway
from serving.engines.fake import FakeEngineServer
from store.store import Store

BASE = "base"
POLICY = "coder"
TENANT = "ten_a"
PASSED = ProbeResult(passed=True, error=0.001, parent_distance=1.0, base_distance=1.0, reason="fake")
QUIET: dict[str, Any] = {"log_config": None, "access_log": False, "timeout_graceful_shutdown": 5}
QUESTION = [{"role": "user", "content": "2 + 2?"}]


@dataclass
class Harness:
    """A running gateway and everything around it."""

    config: HoneConfig
    store: Store
    app: FastAPI
    url: str
    http: aiohttp.ClientSession
    engines: dict[str, FakeEngineServer] = field(default_factory=dict)
    """Deployment id → engine."""
    keys: dict[str, str] = field(default_factory=dict)
    """Name → plaintext."""

    @property
    def gateway(self) -> Gateway:
        """The application's parts."""
        return self.app.state.gateway

    @property
    def engine(self) -> FakeEngineServer:
        """The only engine, or the first."""
        return next(iter(self.engines.values()))

    def client(self, key: str = "user", **options: Any) -> AsyncOpenAI:
        """The official client, without retries of its own."""
        return AsyncOpenAI(
            api_key=self.keys.get(key, key), base_url=f"{self.url}/v1", **({"max_retries": 0} | options)
        )

    def headers(self, key: str = "user", **more: str) -> dict[str, str]:
        """Headers of a raw request."""
        return {"authorization": f"Bearer {self.keys.get(key, key)}"} | more

    async def post(self, path: str, body: Any, key: str = "user", **headers: str) -> aiohttp.ClientResponse:
        """A raw POST with a JSON body (bytes pass as they stand), its answer read."""
        data = {"data": body} if isinstance(body, bytes) else {"json": body}
        response = await self.http.post(self.url + path, headers=self.headers(key, **headers), **data)
        await response.read()
        return response

    async def admin(self, method: str, path: str, body: Any = None, key: str = "admin") -> Any:
        """A call of the admin API; the status and the decoded answer."""
        response = await self.http.request(method, f"{self.url}/admin/v1{path}", headers=self.headers(key), json=body)
        return response.status, await response.json()

    async def turns(self, episode_id: str) -> list[Turn]:
        """The durable Turns of an Episode, after everything recorded so far was written."""
        assert await self.gateway.recorder.flush(10.0)
        async with self.store.reading() as work:
            return await work.turns.for_episode(episode_id)

    async def add_key(self, name: str, *, scopes: set[Scope], training: bool = False, tenant: str = TENANT) -> ApiKey:
        """A stored key whose plaintext is in ``keys``."""
        self.keys[name] = mint_key()
        key = ApiKey(
            id=ids.new_id(ids.KEY),
            tenant_id=tenant,
            name=name,
            key_hash=hash_key(self.keys[name]),
            scopes=frozenset(scopes),
            training_granted=training,
        )
        async with self.store.transaction() as work:
            await work.api_keys.add(key)
        return key

    async def add_engine(
        self, name: str = "dep_a", *, variant: Variant = Variant.STANDARD, versions: tuple[int, ...] = ()
    ) -> FakeEngineServer:
        """A ready replica that holds these versions of the Policy."""
        engine = FakeEngineServer(base_name=BASE)
        await engine.start()
        self.engines[name] = engine
        await self.deploy(name, variant=variant, versions=versions)
        return engine

    async def deploy(
        self,
        name: str,
        *,
        variant: Variant = Variant.STANDARD,
        versions: tuple[int, ...] = (),
        status: DeploymentStatus = DeploymentStatus.READY,
    ) -> None:
        """Write what a replica holds, and give it adapters that answer under those names."""
        engine = self.engines[name]
        engine.adapters |= {engine_name(version): f"adapter:{version}" for version in versions}
        loaded = tuple(
            LoadedVersion(
                policy=POLICY,
                version=version,
                engine_model=engine_name(version),
                checksum="c" * 64,
                swap_seconds=0.1,
                probe=PASSED,
            )
            for version in versions
        )
        deployment = Deployment(
            id=name, base=BASE, variant=variant, engine="fake", url=engine.url, status=status, loaded=loaded
        )
        async with self.store.transaction() as work:
            await work.deployments.put(deployment)
        await self.gateway.routing.refresh()

    async def mint(self, *, live: bool = True) -> PolicyVersion:
        """The next version of the Policy."""
        async with self.store.transaction() as work:
            version = await work.versions.mint(
                POLICY, kind="lora", origin="grpo", parent_version=0, checkpoint_id=None
            )
            if live:
                version = version.model_copy(update={"serving": ServingStatus.LIVE})
                await work.versions.update(version)
        await self.gateway.routing.refresh()
        return version

    def count(self, metric: str, **labels: str) -> float:
        """A sample of the gateway's metrics; 0 if there is none."""
        value = self.gateway.metrics.registry.get_sample_value(metric, labels)
        return 0.0 if value is None else value


def engine_name(version: int) -> str:
    """What engines call a version of the Policy."""
    return f"{POLICY}.v{version}-cccccccc"


def hone_headers(response: aiohttp.ClientResponse) -> dict[str, str]:
    """The ``x-hone-`` headers of an answer, without their prefix."""
    return {
        name.lower().removeprefix("x-hone-"): value
        for name, value in response.headers.items()
        if name.lower().startswith("x-hone-")
    }


@asynccontextmanager
async def served(app: FastAPI) -> AsyncIterator[str]:
    """The gateway under uvicorn on a free port; its URL."""
    async with served_by(uvicorn.Config(app, http=http_protocol(app), lifespan="on", **QUIET)) as url:
        yield url


@asynccontextmanager
async def served_by(config: uvicorn.Config) -> AsyncIterator[str]:
    """What uvicorn is configured to serve, on a free port; its URL."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        server = uvicorn.Server(config)
        task = asyncio.create_task(server.serve(sockets=[listener]))
        while not server.started:
            if task.done():
                task.result()
                raise RuntimeError("the application did not start")
            await asyncio.sleep(0.01)
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            await task


@asynccontextmanager
async def running_gateway(
    store: Store, make_config: Callable[..., HoneConfig], overrides: dict[str, Any] | None = None
) -> AsyncIterator[Harness]:
    """A gateway with one tenant, keys ``user``, ``trainer`` and ``admin``, a Policy, and no engine yet."""
    config = make_config({"base.name": BASE, "gateway.recorder": "inline"} | (overrides or {}))
    app = create_app(config, store, registry=CollectorRegistry())
    async with store.transaction() as work:
        await work.tenants.add(Tenant(id=TENANT, name="A"))
        await work.tenants.add(Tenant(id="ten_b", name="B"))
        await work.bases.put(Base(name=BASE, path="/models/base", fingerprint="f" * 64))
        await work.policies.add(Policy(name=POLICY, base=BASE))
        await work.releases.add(base_release(POLICY))
    async with AsyncExitStack() as stack:
        url = await stack.enter_async_context(served(app))
        http = await stack.enter_async_context(aiohttp.ClientSession())
        harness = Harness(config=config, store=store, app=app, url=url, http=http)
        await harness.add_key("user", scopes={Scope.INFERENCE})
        await harness.add_key("trainer", scopes={Scope.INFERENCE}, training=True)
        await harness.add_key("admin", scopes={Scope.INFERENCE, Scope.ADMIN_READ, Scope.ADMIN_WRITE})
        await harness.add_key("other", scopes={Scope.INFERENCE}, tenant="ten_b")
        try:
            yield harness
        finally:
            for engine in harness.engines.values():
                await engine.stop()
