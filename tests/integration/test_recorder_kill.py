"""A gateway process that is killed under load keeps what it answered; stopped, it leaves nothing behind."""

import asyncio
import random
import signal
import sys
from contextlib import suppress
from dataclasses import dataclass, field

import aiohttp
import psutil
import pytest

from core import ids
from core.access import ApiKey, Scope, Tenant, hash_key, mint_key
from core.config.load import environment_for_child
from core.policy import Base, Policy
from core.variant import Deployment, DeploymentStatus, Variant
from gateway.capture.journal import journal_root
from gateway.release import base_release
from serving.engines.fake import FakeEngineServer
from tests.services import free_port

CLIENTS = 8
KILLS = 3


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


@pytest.fixture
async def engine():
    """A fast engine."""
    async with FakeEngineServer(base_name="base") as engine:
        yield engine


@pytest.fixture
async def installation(fresh_sqlite_url, open_store, make_config, engine):
    """Configuration, Store and key of an installation with one replica."""
    overrides = {
        "base.name": "base",
        "store.url": fresh_sqlite_url,
        "gateway.port": free_port(),
        "gateway.recorder": "process",
    }
    config = make_config(overrides)
    store = await open_store(fresh_sqlite_url)
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
                url=engine.url,
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
    return config, store, key


async def start_gateway(config) -> asyncio.subprocess.Process:
    """A real gateway process that answers."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "hone.processes.gateway"), env=environment_for_child(config, {})
    )
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


async def test_a_killed_gateway_keeps_every_turn_that_it_had_finished(installation):
    """After SIGKILL at random moments each noted Turn is stored once, but for at most the last one per connection."""
    config, store, key = installation
    random_moment = random.Random(11)
    async with aiohttp.ClientSession() as session:
        url = f"{config.gateway_url}/v1/chat/completions"
        clients = [Client(url, key, session, seed) for seed in range(CLIENTS)]
        tasks = [asyncio.create_task(client.run()) for client in clients]
        for _ in range(KILLS):
            process = await start_gateway(config)
            so_far = sum(len(client.noted) for client in clients)
            await until(lambda least=so_far + 40: sum(len(client.noted) for client in clients) > least)
            await asyncio.sleep(random_moment.uniform(0, 0.3))
            process.send_signal(signal.SIGKILL)
            await process.wait()
            for client in clients:
                client.note_kill()
        process = await start_gateway(config)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    children = psutil.Process(process.pid).children(recursive=True)
    process.terminate()
    assert await process.wait() == 0
    assert not any(child.is_running() for child in children)
    assert not list(journal_root(config).glob("jrn_*"))
    noted = [turn_id for client in clients for turn_id in client.noted]
    uncertain = set().union(*(client.last_of_life for client in clients))
    assert len(noted) == len(set(noted)) > 40 * KILLS
    async with store.reading() as work:
        durable = await work.turns.existing(noted)
        episodes = [(await work.turns.get(turn_id)).episode_id for turn_id in sorted(durable)[:50]]
        assert all([(await work.episodes.get(episode_id)).policy == "coder" for episode_id in episodes])
    assert set(noted) - durable <= uncertain


async def test_a_killed_recorder_process_comes_back_and_loses_nothing(installation):
    """The gateway starts its recorder again; what was answered meanwhile is stored."""
    config, store, key = installation
    process = await start_gateway(config)
    async with aiohttp.ClientSession() as session:
        client = Client(f"{config.gateway_url}/v1/chat/completions", key, session, 0)
        task = asyncio.create_task(client.run())
        await until(lambda: len(client.noted) > 5)
        (recorder,) = psutil.Process(process.pid).children()
        recorder.kill()
        so_far = len(client.noted)
        await until(lambda: len(client.noted) > so_far + 20)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    await until(lambda: any(child.pid != recorder.pid for child in psutil.Process(process.pid).children()))
    process.terminate()
    assert await process.wait() == 0
    assert not list(journal_root(config).glob("jrn_*"))
    async with store.reading() as work:
        assert await work.turns.existing(client.noted) == set(client.noted)
