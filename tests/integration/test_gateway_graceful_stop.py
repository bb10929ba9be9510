"""A gateway process that is told to stop finishes what it has begun, takes nothing new and loses nothing."""

import asyncio
import contextlib
import signal

import aiohttp
import pytest

from serving.engines.fake import FakeEngineServer
from tests.gateway_process import install, start_gateway, until
from tests.services import free_port

BODY = {"model": "coder", "messages": [{"role": "user", "content": "Go on"}], "max_tokens": 20, "ignore_eos": True}


@pytest.fixture
async def engine():
    """An engine that takes its time."""
    async with FakeEngineServer(base_name="base") as engine:
        engine.token_delay_seconds = 0.15
        yield engine


async def test_running_answers_are_finished_and_stored(fresh_sqlite_url, open_store, make_config, engine, started):
    """After SIGTERM streams and whole answers end whole, new connections are refused, exit is 0, all is stored."""
    overrides = {"base.name": "base", "store.url": fresh_sqlite_url, "gateway.port": free_port()}
    config = make_config(overrides)
    store = await open_store(fresh_sqlite_url)
    key = await install(store, engine.url)
    process = await start_gateway(config, started)
    url, headers = f"{config.gateway_url}/v1/chat/completions", {"authorization": f"Bearer {key}"}
    begun = 0
    async with aiohttp.ClientSession() as session:

        async def ask(number: int) -> tuple[str, str]:
            nonlocal begun
            body = BODY | {"stream": number % 3 != 0, "seed": number}
            async with session.post(url, json=body, headers=headers) as response:
                if body["stream"]:
                    await response.content.readuntil(b"\n\n")
                    begun += 1
                return response.headers["x-hone-turn-id"], await response.text()

        asking = [asyncio.create_task(ask(number)) for number in range(6)]
        await until(lambda: begun == 4 and engine.running == 6)
        process.send_signal(signal.SIGTERM)
        await until_refused(config.gateway.port)
        assert not any(task.done() for task in asking)
        answers = await asyncio.gather(*asking)
    assert await asyncio.wait_for(process.wait(), 60) == 0
    for number, (_, text) in enumerate(answers):
        assert text.endswith("data: [DONE]\n\n") == (number % 3 != 0)
    async with store.reading() as work:
        turns = [await work.turns.get(turn_id) for turn_id, _ in answers]
    assert [(turn.finish_reason, len(turn.output_ids), turn.trainable) for turn in turns] == [
        ("length", 20, True)
    ] * 6


async def until_refused(port: int) -> None:
    """Wait until nobody listens."""
    async with asyncio.timeout(10):
        while True:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
            except ConnectionRefusedError:
                return
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()
            await asyncio.sleep(0.01)
