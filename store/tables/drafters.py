"""Rows of Drafters."""

from sqlalchemy import Column, Double, Index, String, Table

from store.tables.metadata import METADATA, noun_columns

DRAFTERS = Table(
    "drafters",
    METADATA,
    Column("id", String, primary_key=True),
    Column("base", String, nullable=False),
    Column("created_at", Double, nullable=False),
    *noun_columns(),
    Index(None, "base"),
)
