"""The gateway process: uvicorn with uvloop and the gateway's own HTTP protocol around ``gateway.app``."""

import asyncio

import uvicorn
import uvloop
from prometheus_client import CollectorRegistry

from core.config.schema import HoneConfig
from gateway.app import create_app, http_protocol
from hone.http_server import QuietServer, listen
from hone.local_keys import with_tools_key
from hone.processes.recorder import recorder_beside
from hone.processes.runner import run_process
from store.store import Store


async def serve(config: HoneConfig, store: Store, registry: CollectorRegistry, stop: asyncio.Event) -> None:
    """Answer requests until ``stop`` is set; running answers are finished first, then their Turns are stored."""
    async with recorder_beside(config, store):
        await _answer(config, store, registry, stop)


async def _answer(config: HoneConfig, store: Store, registry: CollectorRegistry, stop: asyncio.Event) -> None:
    listener = listen(config.gateway.host, config.gateway.port, key="gateway.port")
    app = create_app(with_tools_key(config), store, registry=registry)
    server = QuietServer(
        uvicorn.Config(
            app,
            http=http_protocol(app),
            access_log=False,
            log_level="warning",
            proxy_headers=False,
            backlog=4096,
            timeout_graceful_shutdown=30,
        )
    )
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    stopping = asyncio.create_task(stop.wait())
    await asyncio.wait({serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
    server.should_exit = True
    stopping.cancel()
    await serving


def main() -> None:
    """Entry point of ``python -m hone.processes.gateway``."""
    run_process("gateway", serve, loop_factory=uvloop.new_event_loop)


if __name__ == "__main__":
    main()
