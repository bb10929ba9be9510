"""The one MetaData, and the columns that every noun's table has.

A table has columns only for what is queried. The whole noun is JSON in ``payload``; it is a text column,
because PostgreSQL's JSONB refuses NUL characters and NaN, and both occur (in model output and in metrics).
"""

from sqlalchemy import Column, Integer, MetaData, Text

SCHEMA_VERSION = 1
"""Form of the nouns in ``payload``; grows when a reader must convert older rows."""

METADATA = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)


def noun_columns() -> tuple[Column[str], Column[int]]:
    """``payload`` and ``schema_version``."""
    return Column("payload", Text, nullable=False), Column("schema_version", Integer, nullable=False)
