"""What every repository does: map a noun to a row and back, add, put, get and list."""

import json
from collections.abc import Sequence
from typing import Any, Generic, TypeVar

from sqlalchemy import ColumnElement, Row, Select, Table, and_, select, update

from core.errors import Conflict, NotFound, StoreError
from core.noun import Noun
from store.connection import Connection
from store.tables.metadata import SCHEMA_VERSION

NounT = TypeVar("NounT", bound=Noun)

_NOT_NOUN = frozenset({"payload", "schema_version"})


class Repository(Generic[NounT]):
    """Nouns of one class in one table. Every column but the payload is an attribute of the noun."""

    def __init__(self, connection: Connection, noun: type[NounT], table: Table) -> None:
        self._connection = connection
        self._noun = noun
        self._table = table
        self._key = tuple(column.name for column in table.primary_key)

    def _row(self, noun: NounT) -> dict[str, Any]:
        fields = type(noun).model_fields
        row = {column.name: getattr(noun, column.name) for column in self._table.c if column.name in fields}
        return row | {"payload": _dump(noun), "schema_version": SCHEMA_VERSION}

    def _noun_of(self, row: Row[Any]) -> NounT:
        check_schema_version(row.schema_version, self._noun)
        return self._noun.model_validate_json(row.payload)

    def _is(self, *key: object) -> ColumnElement[bool]:
        return and_(*(self._table.c[name] == value for name, value in zip(self._key, key, strict=True)))

    def _key_of(self, noun: NounT) -> tuple[object, ...]:
        return tuple(getattr(noun, name) for name in self._key)

    async def _add(self, noun: NounT) -> None:
        """Insert; raises Conflict when the key, or another unique column, is taken."""
        if not await self._add_new([noun]):
            raise Conflict(f"{self._label(*self._key_of(noun))} exists already")

    async def _add_new(self, nouns: Sequence[NounT]) -> int:
        """Insert those whose keys are free; the number inserted."""
        statement = self._connection.insert(self._table).on_conflict_do_nothing()
        rows = [self._row(noun) for noun in nouns]
        added = await self._connection.change_returning(statement.returning(self._table.c[self._key[0]]), rows)
        return len(added)

    async def _put(self, noun: NounT) -> None:
        """Insert or replace."""
        statement = self._connection.insert(self._table).values(self._row(noun))
        replaced = {column.name: column for column in statement.excluded if column.name not in self._key}
        await self._connection.change(statement.on_conflict_do_update(index_elements=list(self._key), set_=replaced))

    async def _update(self, noun: NounT) -> None:
        """Replace the row with the noun's key; raises NotFound when there is none."""
        statement = update(self._table).where(self._is(*self._key_of(noun))).values(self._row(noun))
        if await self._connection.change(statement) == 0:
            raise self._missing(*self._key_of(noun))

    async def _get(self, *key: object, lock: bool = False) -> NounT:
        """The noun with this key; with ``lock``, no other transaction changes it before this one ends."""
        query = self._select().where(self._is(*key))
        found = await self._first(query.with_for_update() if lock else query)
        if found is None:
            raise self._missing(*key)
        return found

    def _select(self) -> Select[Any]:
        return select(self._table.c.payload, self._table.c.schema_version)

    async def _first(self, query: Select[Any]) -> NounT | None:
        row = await self._connection.row(query)
        return None if row is None else self._noun_of(row)

    async def _all(self, query: Select[Any]) -> list[NounT]:
        return [self._noun_of(row) for row in await self._connection.rows(query)]

    def _label(self, *key: object) -> str:
        return f"{self._noun.__name__} {'@'.join(str(part) for part in key)}"

    def _missing(self, *key: object) -> NotFound:
        return NotFound(f"there is no {self._label(*key)}")

    def _where(self, query: Select[Any], **wanted: object) -> Select[Any]:
        """Restrict to rows whose columns have the wanted values; None: any."""
        for name, value in wanted.items():
            if value is not None:
                query = query.where(self._table.c[name] == value)
        return query


def check_schema_version(version: int, noun: type[Noun]) -> None:
    """Raise StoreError for a row that a newer Hone wrote."""
    if version > SCHEMA_VERSION:
        raise StoreError(
            f"a {noun.__name__} was written in form {version}; this Hone knows forms up to {SCHEMA_VERSION}",
            hint="run the newer Hone that wrote it",
        )


def _dump(noun: Noun) -> str:
    # Not model_dump_json: it would turn NaN into null, which no float field takes back.
    return json.dumps(noun.model_dump(mode="json"), ensure_ascii=True, separators=(",", ":"))
