"""Rows of Tombstones, and of the Episodes that they cover."""

from sqlalchemy import Column, Double, Index, String, Table

from store.tables.metadata import METADATA, noun_columns

TOMBSTONES = Table(
    "tombstones",
    METADATA,
    Column("id", String, primary_key=True),
    Column("tenant_id", String, nullable=False),
    Column("subject", String, nullable=False),
    Column("created_at", Double, nullable=False),
    *noun_columns(),
    Index(None, "tenant_id", "subject"),
    Index(None, "created_at"),
)

WITHDRAWALS = Table(
    "withdrawals",
    METADATA,
    Column("episode_id", String, primary_key=True),
    Column("tenant_id", String, nullable=False),
    Column("tombstone_id", String, nullable=False),
    *noun_columns(),
    Index(None, "tenant_id"),
)
