"""Rows of Tasks."""

from sqlalchemy import Column, Index, String, Table

from store.tables.metadata import METADATA, noun_columns

TASKS = Table(
    "tasks",
    METADATA,
    Column("id", String, primary_key=True),
    Column("domain", String, nullable=False),
    Column("split", String, nullable=False),
    *noun_columns(),
    Index(None, "domain", "split"),
)
