"""Rows of Usage: every field is a column, because the database adds them up."""

from sqlalchemy import BigInteger, Column, String, Table

from store.tables.metadata import METADATA

USAGE = Table(
    "usage",
    METADATA,
    Column("tenant_id", String, primary_key=True),
    Column("month", String, primary_key=True),
    Column("key_id", String, primary_key=True),
    Column("requests", BigInteger, nullable=False),
    Column("prompt_tokens", BigInteger, nullable=False),
    Column("completion_tokens", BigInteger, nullable=False),
    Column("cost_microdollars", BigInteger, nullable=False),
)
