"""Engines that outlived their fleet: found by their Deployments, and ended."""

import platform
from urllib.parse import urlsplit

import structlog

from core.config.schema import HoneConfig
from core.errors import StoreError, boundary
from hone.opened_store import opened_store
from serving.launcher import end_leftover

log = structlog.get_logger(__name__)


async def end_leftover_engines(config: HoneConfig) -> int:
    """End engines that the configured database records and whose fleet is gone; how many there were.

    Call it only when this installation's fleet has ended. A database that cannot be read is logged and left alone.
    """
    try:
        with boundary(StoreError, "reading the Deployments"):
            async with opened_store(config) as store, store.reading() as tx:
                rows = await tx.deployments.list()
    except StoreError as error:
        log.warning("leftovers.unknown", error=error.message)
        return 0
    ended = 0
    for row in rows:
        port = urlsplit(row.url).port
        if row.machine not in (None, platform.node()):
            continue
        if row.pid is not None and port is not None and await end_leftover(row.pid, port):
            log.warning("leftover.ended", url=row.url, pid=row.pid)
            ended += 1
    return ended
