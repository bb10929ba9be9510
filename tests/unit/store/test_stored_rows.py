"""Rows that this Hone cannot trust are refused, not guessed at."""

import pytest
from sqlalchemy import text

from core.errors import CorruptArtefact, StoreError
from core.policy import Base
from store.database import Database
from store.store import Store
from tests import nouns
from tests.conftest import OpenStore


@pytest.fixture
async def sqlite_store(fresh_sqlite_url: str, open_store: OpenStore) -> Store:
    """A Store on a migrated SQLite file."""
    return await open_store(fresh_sqlite_url, {"store.inline_bytes": 0})


async def test_a_row_of_a_newer_hone_is_refused(sqlite_store: Store, fresh_sqlite_url: str) -> None:
    """A newer form of a noun is an error that says who can read it."""
    async with sqlite_store.transaction() as work:
        await work.bases.put(Base(name="smol", path="/x", fingerprint="f"))
    database = Database(fresh_sqlite_url)
    async with database.transaction() as connection:
        await connection.change(text("UPDATE bases SET schema_version = 99"))
    await database.close()
    async with sqlite_store.reading() as work:
        with pytest.raises(StoreError, match="form 99"):
            await work.bases.get("smol")


async def test_a_turn_whose_blob_is_gone_is_corrupt(sqlite_store: Store) -> None:
    """Tokens that the row promises and the blob store lacks raise CorruptArtefact."""
    turn = nouns.turn()
    async with sqlite_store.transaction() as work:
        await work.turns.add_many([turn])
    await sqlite_store.blobs.delete(f"turns/{turn.episode_id}/{turn.id}")
    async with sqlite_store.reading() as work:
        with pytest.raises(CorruptArtefact, match=turn.id):
            await work.turns.get(turn.id)


async def test_a_turn_whose_blob_is_damaged_is_corrupt(sqlite_store: Store) -> None:
    """Tokens that cannot be decoded raise CorruptArtefact, whether cut short or of another form."""
    turn = nouns.turn()
    async with sqlite_store.transaction() as work:
        await work.turns.add_many([turn])
    for damaged in (b"\x93\x91", b"\x01"):
        await sqlite_store.blobs.put(f"turns/{turn.episode_id}/{turn.id}", damaged)
        async with sqlite_store.reading() as work:
            with pytest.raises(CorruptArtefact, match=turn.id):
                await work.turns.get(turn.id)
