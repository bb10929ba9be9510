"""Rows of Drafters."""

from sqlalchemy import Column, Double, Index, Integer, String, Table, UniqueConstraint

from store.tables.metadata import METADATA, noun_columns

DRAFTERS = Table(
    "drafters",
    METADATA,
    Column("id", String, primary_key=True),
    Column("base", String, nullable=False),
    Column("policy", String, nullable=True),
    Column("number", Integer, nullable=False),
    Column("status", String, nullable=False),
    Column("created_at", Double, nullable=False),
    *noun_columns(),
    UniqueConstraint("base", "number"),
    Index(None, "base", "status"),
)
