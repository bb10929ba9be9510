"""What SGLang's adapter does beyond the contract of all engines."""

import asyncio
from pathlib import Path

import pytest
from aiohttp import web

from core.errors import EngineError, EngineUnavailable
from serving.engines.fake_sglang import FakeSglangServer
from serving.engines.sglang import SglangEngine
from tests.serving_harness import BASE, write_adapter, write_base


async def test_an_adapter_in_use_is_unloaded_in_the_background(tmp_path: Path) -> None:
    """Nobody waits for an adapter's last request: that is told, asked again at no cost, and unloading goes on."""
    base = write_base(tmp_path / "base")
    folder = str(write_adapter(tmp_path / "adapter", Path(base.path), seed=1))
    async with FakeSglangServer(base_name=BASE) as server:
        engine = SglangEngine(server.url, base=BASE, unload_seconds=0.2)
        await engine.load_adapter("one", folder)
        server.adapters_drained.clear()
        async with asyncio.timeout(20):
            for _ in range(2):
                with pytest.raises(EngineUnavailable, match="still answers requests on 'one'"):
                    await engine.unload_adapter("one")
            assert await engine.models() == [BASE]
            with pytest.raises(EngineUnavailable, match="requests on one run"):
                await engine.load_adapter("two", folder)
            server.adapters_drained.set()
            while True:
                try:
                    await engine.load_adapter("two", folder)
                    break
                except EngineUnavailable:
                    await asyncio.sleep(0.01)
        await engine.unload_adapter("one")
        assert await engine.models() == [BASE, "two"]
        await engine.close()


async def test_closing_ends_the_wait_for_an_adapter(tmp_path: Path) -> None:
    """A fleet that stops does not wait for requests on an adapter that is being unloaded."""
    base = write_base(tmp_path / "base")
    folder = str(write_adapter(tmp_path / "adapter", Path(base.path), seed=1))
    async with FakeSglangServer(base_name=BASE) as server:
        engine = SglangEngine(server.url, base=BASE, unload_seconds=0.05)
        await engine.load_adapter("one", folder)
        server.adapters_drained.clear()
        with pytest.raises(EngineUnavailable):
            await engine.unload_adapter("one")
        async with asyncio.timeout(20):
            await engine.close()
        server.adapters_drained.set()


async def test_an_engine_that_names_no_model_is_an_engine_error() -> None:
    """An empty list of models is the engine's fault, told as such."""

    async def nothing(_: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": []})

    application = web.Application()
    application.router.add_get("/v1/models", nothing)
    runner = web.AppRunner(application)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    engine = SglangEngine(f"http://127.0.0.1:{runner.addresses[0][1]}")
    try:
        with pytest.raises(EngineError, match="names no model"):
            await engine.models()
    finally:
        await engine.close()
        await runner.cleanup()
