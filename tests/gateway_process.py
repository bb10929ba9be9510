"""A real gateway process before a fake engine, and clients that note what it answered."""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

import aiohttp

from core import ids
from core.access import ApiKey, Scope, Tenant, hash_key, mint_key
from core.config.load import environment_for_child
from core.config.schema import HoneConfig
from core.deployment import Deployment, DeploymentStatus
from core.policy import Base, Policy
from core.variant import Variant
from gateway.release import base_release
from store.store import Store


@dataclass
class Client:
    """One connection after another; what it was told about every complete answer."""

    url: str
    key: str
    session: aiohttp.ClientSession
    seed: int
    noted: list[str] = field(default_factory=list)
    last_of_life: set[str] = field(default_factory=set)
    """The last answer before each kill: it may have been recorded or not."""

    async def run(self) -> None:
        """Ask until cancelled, streams and whole answers in turn."""
        number = 0
        while True:
            number += 1
            body = {
                "model": "coder",
                "messages": [{"role": "user", "content": f"{self.seed} and {number}?"}],
                "max_tokens": 6,
                "stream": number % 2 == 0,
            }
            headers = {"authorization": f"Bearer {self.key}"}
            try:
                async with self.session.post(self.url, json=body, headers=headers) as response:
                    data = await response.read()
                    if response.status != 200 or (body["stream"] and not data.endswith(b"data: [DONE]\n\n")):
                        await asyncio.sleep(0.02)
                        continue
                    self.noted.append(response.headers["x-hone-turn-id"])
            except (aiohttp.ClientError, OSError):
                await asyncio.sleep(0.02)

    def note_kill(self) -> None:
        """Its gateway is dead now."""
        if self.noted:
            self.last_of_life.add(self.noted[-1])


async def install(store: Store, engine_url: str) -> str:
    """A tenant, a Policy and one replica in the store; the plaintext of a key that grants training."""
    key = mint_key()
    async with store.transaction() as work:
        await work.tenants.add(Tenant(id="ten_a", name="A"))
        await work.bases.put(Base(name="base", path="/models/base", fingerprint="f" * 64))
        await work.policies.add(Policy(name="coder", base="base"))
        await work.releases.add(base_release("coder"))
        await work.deployments.put(
            Deployment(
                id="dep_a",
                base="base",
                variant=Variant.STANDARD,
                engine="fake",
                url=engine_url,
                status=DeploymentStatus.READY,
            )
        )
        await work.api_keys.add(
            ApiKey(
                id=ids.new_id(ids.KEY),
                tenant_id="ten_a",
                name="k",
                key_hash=hash_key(key),
                scopes=frozenset({Scope.INFERENCE}),
                training_granted=True,
            )
        )
    return key


@asynccontextmanager
async def no_gateway_left() -> AsyncIterator[list[asyncio.subprocess.Process]]:
    """Ends, at the end, whatever of the processes in the list still runs."""
    started: list[asyncio.subprocess.Process] = []
    try:
        yield started
    finally:
        for process in started:
            if process.returncode is None:
                process.terminate()
                await process.wait()


async def start_gateway(config: HoneConfig, started: list[asyncio.subprocess.Process]) -> asyncio.subprocess.Process:
    """A real gateway process that answers; put into ``started``."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "hone.processes.gateway"), env=environment_for_child(config, {})
    )
    started.append(process)
    async with aiohttp.ClientSession() as session, asyncio.timeout(60):
        while True:
            assert process.returncode is None
            with suppress(aiohttp.ClientError, OSError):
                async with session.get(f"{config.gateway_url}/ready") as response:
                    if response.status == 200:
                        return process
            await asyncio.sleep(0.05)


async def until(condition, seconds: float = 60.0) -> None:
    """Wait until ``condition`` holds."""
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.02)
