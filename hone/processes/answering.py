"""What every gateway process does: uvicorn with the gateway's own HTTP protocol around ``gateway.app``."""

import asyncio
import gc

import uvicorn
from prometheus_client import CollectorRegistry

from core.config.schema import HoneConfig
from gateway.app import create_app, http_protocol
from gateway.sibling_metrics import SiblingMetrics
from hone.http_server import QuietServer, listen
from hone.local_keys import with_tools_key
from store.store import Store


async def answer(
    config: HoneConfig, store: Store, registry: CollectorRegistry, stop: asyncio.Event, *, number: int | None = None
) -> None:
    """Answer requests until ``stop`` is set; running answers are finished first.

    ``number``: this is one of several processes that share the port.
    """
    shared = number is not None
    listener = listen(config.gateway.host, config.gateway.port, key="gateway.port", shared=shared)
    siblings = None
    if number is not None:
        folder = config.data_dir.expanduser() / "run" / f"gateway-{config.gateway.port}"
        siblings = SiblingMetrics(folder=folder, index=number, registry=registry)
    app = create_app(with_tools_key(config), store, registry=registry, siblings=siblings)
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
    # What has been imported stays: no collection needs to look at it again.
    gc.freeze()
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    stopping = asyncio.create_task(stop.wait())
    await asyncio.wait({serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
    server.should_exit = True
    stopping.cancel()
    await serving
