"""A Store for the length of a block, for commands that work on the database directly."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from core.config.schema import HoneConfig
from store.store import Store


@asynccontextmanager
async def opened_store(config: HoneConfig) -> AsyncIterator[Store]:
    """Open the configured Store and close it at the end of the block."""
    store = await Store.open(config)
    try:
        yield store
    finally:
        await store.close()
