"""The tool service as the worker process runs it, and the gateway's side of the same configuration."""

import asyncio
from collections.abc import Callable

import pytest
from prometheus_client import CollectorRegistry

from core.config.schema import HoneConfig
from core.errors import ConfigurationError, MachineError
from gateway.hosted_tools.tools import SandboxedTools
from hone.bootstrap import seed
from hone.local_keys import LocalKeys, with_tools_key, write_local_keys
from hone.processes import worker
from hone.tool_service import ToolService
from tests.conftest import OpenStore
from tests.tool_service_harness import caller, free_port

CODE = {"type": "code_interpreter", "container": {"type": "auto"}}
Make = Callable[..., HoneConfig]


def local_keys(config: HoneConfig) -> HoneConfig:
    """The configuration of a machine with keys of its own, as both processes resolve it."""
    write_local_keys(config, LocalKeys(admin="hone-a", worker="hone-w"))
    return with_tools_key(config)


async def test_both_processes_find_each_other_without_any_setting(make_config: Make) -> None:
    """With local keys only, the gateway's hosted tools run in the worker's tool service."""
    config = local_keys(make_config({"worker.tools_port": free_port(), "sandbox.pool_size": 0}))
    service = ToolService(config=config, registry=CollectorRegistry())
    tools = SandboxedTools(config=config)
    await tools.start()
    await service.start()
    try:
        async with await tools.open_session(caller("ten_a"), None, [CODE]) as session:
            assert (await session.run("code_interpreter", {"code": "6 * 7"})).text == "42"
    finally:
        await tools.stop()
        await service.stop()


async def test_the_worker_process_serves_tools(
    fresh_sqlite_url: str, open_store: OpenStore, make_config: Make
) -> None:
    """The worker's composition root runs the service beside its jobs, and ends both when it is told to stop."""
    settings = {"store.url": fresh_sqlite_url, "worker.tools_port": free_port(), "sandbox.pool_size": 0}
    config = make_config(settings)
    store = await open_store(fresh_sqlite_url)
    await seed(config, store)
    stop = asyncio.Event()
    serving = asyncio.create_task(worker.serve(config, store, CollectorRegistry(), stop))
    tools = SandboxedTools(config=with_tools_key(config))
    await tools.start()
    outcome = None
    for _ in range(200):
        async with await tools.open_session(caller("ten_a"), None, [CODE]) as session:
            outcome = await session.run("code_interpreter", {"code": "6 * 7"})
        if outcome.error is None or serving.done():
            break
        await asyncio.sleep(0.1)
    stop.set()
    await serving
    await tools.stop()
    assert outcome is not None and outcome.text == "42"


async def test_port_zero_is_no_service(make_config: Make) -> None:
    """A worker without a tools port starts nothing, and calls say that no service is configured."""
    config = local_keys(make_config({"worker.tools_port": 0}))
    service = ToolService(config=config, registry=CollectorRegistry())
    await service.start()
    await service.stop()
    tools = SandboxedTools(config=config)
    await tools.start()
    async with await tools.open_session(caller("ten_a"), None, [CODE]) as session:
        outcome = await session.run("code_interpreter", {"code": "1"})
    await tools.stop()
    assert outcome.error == "no tool service is configured; see gateway.tools_url"


async def test_a_taken_port_is_told(make_config: Make) -> None:
    """Two services on one port: the second names the port and its key, and leaves nothing behind."""
    config = local_keys(make_config({"worker.tools_port": free_port(), "sandbox.pool_size": 0}))
    first, second = (ToolService(config=config, registry=CollectorRegistry()) for _ in range(2))
    await first.start()
    try:
        with pytest.raises(MachineError) as caught:
            await second.start()
        await second.stop()
    finally:
        await first.stop()
    assert "worker.tools_port" in (caught.value.hint or "")


def test_the_key_is_derived_and_never_a_key_itself(make_config: Make) -> None:
    """The derived key is the same for everyone with the local key, says nothing about it, and a set one wins."""
    config = make_config()
    assert with_tools_key(config).worker.tools_key.get_secret_value() == ""
    derived = local_keys(config).worker.tools_key.get_secret_value()
    assert derived == with_tools_key(config).worker.tools_key.get_secret_value() != ""
    assert "hone-w" not in derived
    assert with_tools_key(make_config({"worker.api_key": "other"})).worker.tools_key.get_secret_value() != derived
    assert with_tools_key(make_config({"worker.tools_key": "mine"})).worker.tools_key.get_secret_value() == "mine"


def test_a_wildcard_host_needs_an_address(make_config: Make) -> None:
    """Listening everywhere without saying how to be reached is a configuration error."""
    with pytest.raises(ConfigurationError, match=r"worker\.tools_url"):
        make_config({"worker.tools_host": "0.0.0.0"})
    assert make_config({"worker.tools_host": "0.0.0.0", "worker.tools_url": "http://w:1"}).tools_url == "http://w:1"
