"""Several gateway processes behind one port: one gateway to its clients, also while one of them dies."""

import asyncio
import re
import signal

import aiohttp
import psutil
import pytest

from serving.engines.fake import FakeEngineServer
from tests.gateway_process import Client, install, start_gateway, until
from tests.services import free_port

WORKERS = 2
CLIENTS = 12


@pytest.fixture
async def installation(fresh_sqlite_url, open_store, make_config):
    """Configuration, Store and key of a gateway with several processes."""
    async with FakeEngineServer(base_name="base") as engine:
        overrides = {
            "base.name": "base",
            "store.url": fresh_sqlite_url,
            "gateway.port": free_port(),
            "gateway.workers": WORKERS,
            "gateway.recorder": "process",
        }
        store = await open_store(fresh_sqlite_url)
        yield make_config(overrides), store, await install(store, engine.url)


def workers_of(process: asyncio.subprocess.Process) -> list[psutil.Process]:
    """The processes that answer."""
    found = []
    for child in psutil.Process(process.pid).children():
        if any("gateway_worker" in argument for argument in child.cmdline()):
            found.append(child)
    return found


async def shown(session: aiohttp.ClientSession, url: str) -> dict[str, float]:
    """Gateway process → requests that it answered with 200, from one scrape."""
    async with session.get(f"{url}/metrics") as response:
        text = await response.text()
    rows = re.findall(r"hone_requests_total\{(.*?)\} (\S+)", text)
    counts: dict[str, float] = {}
    for labels, value in rows:
        if 'status="200"' in labels and "/v1/chat/completions" in labels:
            number = re.search(r'gateway_process="(.*?)"', labels)
            assert number is not None
            counts[number[1]] = counts.get(number[1], 0) + float(value)
    return counts


async def test_processes_share_the_port_and_replace_each_other(installation, started):
    """Connections are spread, one scrape shows all processes, a killed one comes back, and no Turn is lost."""
    config, store, key = installation
    process = await start_gateway(config, started)
    await until(lambda: len(workers_of(process)) == WORKERS)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0, force_close=True)) as session:
        url = f"{config.gateway_url}/v1/chat/completions"
        clients = [Client(url, key, session, seed) for seed in range(CLIENTS)]
        tasks = [asyncio.create_task(client.run()) for client in clients]

        def noted() -> int:
            return sum(len(client.noted) for client in clients)

        async with asyncio.timeout(60):
            # The second process may begin to listen some time after the first.
            while set(await shown(session, config.gateway_url)) != {"0", "1"}:
                await asyncio.sleep(0.2)
        victim = workers_of(process)[0]
        victim.send_signal(signal.SIGKILL)
        for client in clients:
            client.note_kill()
        so_far = noted()
        await until(lambda: noted() > so_far + 60)
        await until(lambda: len([child for child in workers_of(process) if child.pid != victim.pid]) == WORKERS)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    process.terminate()
    assert await process.wait() == 0
    ids = [turn_id for client in clients for turn_id in client.noted]
    uncertain = set().union(*(client.last_of_life for client in clients))
    async with store.reading() as work:
        assert set(ids) - await work.turns.existing(ids) <= uncertain
