"""A gateway process that is killed under load keeps what it answered; stopped, it leaves nothing behind."""

import asyncio
import random
import signal

import aiohttp
import psutil
import pytest

from gateway.capture.journal import journal_root
from serving.engines.fake import FakeEngineServer
from tests.gateway_process import Client, install, start_gateway, until
from tests.services import free_port

CLIENTS = 8
KILLS = 3


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
    store = await open_store(fresh_sqlite_url)
    return make_config(overrides), store, await install(store, engine.url)


async def test_a_killed_gateway_keeps_every_turn_that_it_had_finished(installation, started):
    """After SIGKILL at random moments each noted Turn is stored once, but for at most the last one per connection."""
    config, store, key = installation
    random_moment = random.Random(11)
    async with aiohttp.ClientSession() as session:
        url = f"{config.gateway_url}/v1/chat/completions"
        clients = [Client(url, key, session, seed) for seed in range(CLIENTS)]
        tasks = [asyncio.create_task(client.run()) for client in clients]
        for _ in range(KILLS):
            process = await start_gateway(config, started)
            so_far = sum(len(client.noted) for client in clients)
            await until(lambda least=so_far + 40: sum(len(client.noted) for client in clients) > least)
            await asyncio.sleep(random_moment.uniform(0, 0.3))
            process.send_signal(signal.SIGKILL)
            await process.wait()
            for client in clients:
                client.note_kill()
        process = await start_gateway(config, started)
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


async def test_a_killed_recorder_process_comes_back_and_loses_nothing(installation, started):
    """The gateway starts its recorder again; what was answered meanwhile is stored."""
    config, store, key = installation
    process = await start_gateway(config, started)
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
