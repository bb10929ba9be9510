"""Rows of SamenessChecks."""

from sqlalchemy import Column, Double, Index, String, Table

from store.tables.metadata import METADATA, noun_columns

SAMENESS_CHECKS = Table(
    "sameness_checks",
    METADATA,
    Column("id", String, primary_key=True),
    Column("base", String, nullable=False),
    Column("fast_id", String, nullable=False),
    Column("created_at", Double, nullable=False),
    *noun_columns(),
    Index(None, "base", "created_at"),
    Index(None, "fast_id", "created_at"),
)
