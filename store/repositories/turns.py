"""Turns in the store: the token arrays packed apart from the rest, in the row or, when large, in a blob."""

import json
from collections.abc import Collection, Sequence
from typing import Any

import msgspec
from sqlalchemy import Row, Select, func, select, update

from core.errors import CorruptArtefact, NotFound
from core.turn import Turn
from store.blobs import Blobs
from store.connection import Connection
from store.repositories.base import Repository, check_schema_version
from store.tables.turns import TURNS

_ARRAYS = ("prompt_ids", "output_ids", "output_logprobs")
_MOST_THREAD_ROWS = 1_000
_Arrays = tuple[tuple[int, ...], tuple[int, ...], tuple[float, ...]]


class _Span(msgspec.Struct):
    version: int


class _Spoken(msgspec.Struct):
    """Who answered, in a Turn's payload."""

    policy: str
    policy_spans: list[_Span]
    deployment_id: str | None = None


_DECODE_VERSION = msgspec.json.Decoder(_Spoken).decode
_DECODER = msgspec.msgpack.Decoder(_Arrays)


class Turns(Repository[Turn]):
    """Turns by id. Adding is idempotent: a repeated request adds no second Turn."""

    def __init__(self, connection: Connection, *, blobs: Blobs, inline_bytes: int) -> None:
        super().__init__(connection, Turn, TURNS)
        self._blobs = blobs
        self._inline_bytes = inline_bytes

    async def add_many(self, turns: Sequence[Turn]) -> int:
        """Add those whose id, and whose (tenant, idempotency key, choice), are free; the number added."""
        # In one order everywhere, so that two batches with the same Turns cannot wait for each other.
        ordered = sorted({turn.id: turn for turn in turns}.values(), key=lambda turn: turn.id)
        known = await self.existing([turn.id for turn in ordered])
        fresh = [turn for turn in ordered if turn.id not in known]
        rows = [await self._packed(turn) for turn in fresh]
        statement = self._connection.insert(TURNS).on_conflict_do_nothing().returning(TURNS.c.id)
        added = {row.id for row in await self._connection.change_returning(statement, rows)}
        for row in rows:
            # Another request had the idempotency key: the blob written for this id belongs to nobody.
            if row["tokens_blob"] and row["id"] not in added and not await self.existing([row["id"]]):
                await self._blobs.delete(row["tokens_blob"])
        return len(added)

    async def get(self, turn_id: str) -> Turn:
        """One Turn; raises NotFound."""
        row = await self._connection.row(self.selected().where(TURNS.c.id == turn_id))
        if row is None:
            raise self._missing(turn_id)
        return await self.unpacked(row)

    async def for_episode(self, episode_id: str) -> list[Turn]:
        """An Episode's Turns in the order in which they were recorded."""
        query = self.selected().where(TURNS.c.episode_id == episode_id)
        rows = await self._connection.rows(query.order_by(TURNS.c.index, TURNS.c.choice, TURNS.c.created_at))
        return [await self.unpacked(row) for row in rows]

    async def progress(self, episode_id: str) -> tuple[int, dict[str, int], str | None]:
        """The index of an Episode's next Turn, Policy → the version that answered its first Turn there, and the
        Deployment that answered last."""
        query = select(TURNS.c.index.label("place"), TURNS.c.payload).where(TURNS.c.episode_id == episode_id)
        next_index, versions, last = 0, dict[str, int](), None
        for row in await self._connection.rows(query.order_by(TURNS.c.index, TURNS.c.choice, TURNS.c.created_at)):
            spoken = _DECODE_VERSION(row.payload)
            next_index = max(next_index, row.place + 1)
            versions.setdefault(spoken.policy, spoken.policy_spans[0].version)
            last = spoken.deployment_id
        return next_index, versions, last

    async def existing(self, turn_ids: Collection[str]) -> set[str]:
        """Which of these are durable."""
        found: set[str] = set()
        ordered = list(turn_ids)
        for start in range(0, len(ordered), 1000):
            page = select(TURNS.c.id).where(TURNS.c.id.in_(ordered[start : start + 1000]))
            found.update(row.id for row in await self._connection.rows(page))
        return found

    async def episode_of(self, turn_id: str, *, tenant_id: str) -> str | None:
        """The Episode of a Tenant's Turn; None where the Tenant has no such Turn."""
        query = select(TURNS.c.episode_id).where(TURNS.c.id == turn_id, TURNS.c.tenant_id == tenant_id)
        row = await self._connection.row(query)
        return None if row is None else str(row.episode_id)

    async def by_thread(self, tenant_id: str, threads: Sequence[str]) -> tuple[str, str] | None:
        """Episode and id of the Tenant's newest Turn whose conversation is the first of ``threads`` that there is."""
        columns = (TURNS.c.episode_id, TURNS.c.id, TURNS.c.thread)
        query = select(*columns).where(TURNS.c.tenant_id == tenant_id, TURNS.c.thread.in_(list(threads)))
        rows = await self._connection.rows(query.order_by(TURNS.c.created_at.desc()).limit(_MOST_THREAD_ROWS))
        ranks = {thread: rank for rank, thread in enumerate(threads)}
        found = min(rows, key=lambda row: ranks[row.thread], default=None)
        return None if found is None else (str(found.episode_id), str(found.id))

    async def under_key(self, tenant_id: str, key: str) -> list[tuple[str, str, int]]:
        """Id, Episode and index of the Turns that a Tenant's request with this idempotency key left, by choice."""
        columns = (TURNS.c.id, TURNS.c.episode_id, TURNS.c.index.label("place"))
        query = select(*columns).where(TURNS.c.tenant_id == tenant_id, TURNS.c.idempotency_key == key)
        rows = await self._connection.rows(query.order_by(TURNS.c.choice))
        return [(str(row.id), str(row.episode_id), int(row.place)) for row in rows]

    async def replace(self, turn: Turn) -> str | None:
        """Replace a Turn; raises NotFound.

        Returns the key of a blob that belongs to nobody once this is committed: it is to be deleted then.
        """
        query = select(TURNS.c.tokens_blob).where(TURNS.c.id == turn.id).with_for_update()
        old = await self._connection.row(query)
        if old is None:
            raise self._missing(turn.id)
        row = await self._packed(turn)
        await self._connection.change(update(TURNS).where(TURNS.c.id == turn.id).values(row))
        return None if old.tokens_blob == row["tokens_blob"] else old.tokens_blob

    async def newest(self, episode_ids: Sequence[str]) -> dict[str, float]:
        """When the newest Turn of each of these Episodes was made, for those that have one."""
        newest = func.max(TURNS.c.created_at).label("newest")
        query = select(TURNS.c.episode_id, newest).where(TURNS.c.episode_id.in_(list(episode_ids)))
        rows = await self._connection.rows(query.group_by(TURNS.c.episode_id))
        return {row.episode_id: row.newest for row in rows}

    def selected(self) -> Select[Any]:
        """The columns that ``unpacked`` needs."""
        return self._select().add_columns(TURNS.c.id, TURNS.c.tokens, TURNS.c.tokens_blob)

    async def _packed(self, turn: Turn) -> dict[str, Any]:
        row = self._row(turn.model_copy(update=dict.fromkeys(_ARRAYS, ())))
        data = msgspec.msgpack.encode(tuple(getattr(turn, name) for name in _ARRAYS))
        if len(data) <= self._inline_bytes:
            return row | {"tokens": data, "tokens_blob": None}
        key = f"turns/{turn.episode_id}/{turn.id}"
        await self._blobs.put(key, data)
        return row | {"tokens": None, "tokens_blob": key}

    async def unpacked(self, row: Row[Any]) -> Turn:
        """The Turn of a row of ``selected``. Raises CorruptArtefact when its tokens cannot be read."""
        check_schema_version(row.schema_version, Turn)
        data = row.tokens if row.tokens_blob is None else await self._fetched(row)
        try:
            arrays = dict(zip(_ARRAYS, _DECODER.decode(data), strict=True))
        except msgspec.DecodeError as error:
            raise CorruptArtefact(f"the tokens of Turn {row.id} cannot be read: {error}") from error
        return Turn.model_validate(json.loads(row.payload) | arrays)

    async def _fetched(self, row: Row[Any]) -> bytes:
        try:
            return await self._blobs.get(row.tokens_blob)
        except NotFound as error:
            raise CorruptArtefact(f"the tokens of Turn {row.id} are gone from the blob store") from error
