"""Rows of Suites."""

from sqlalchemy import Column, Double, Integer, String, Table

from store.tables.metadata import METADATA, noun_columns

SUITES = Table(
    "suites",
    METADATA,
    Column("name", String, primary_key=True),
    Column("version", Integer, primary_key=True),
    Column("tenant_id", String, nullable=True, index=True),
    Column("created_at", Double, nullable=False),
    *noun_columns(),
)
