"""Rows of Episodes."""

from sqlalchemy import Column, Double, Index, String, Table

from store.tables.metadata import METADATA, noun_columns

EPISODES = Table(
    "episodes",
    METADATA,
    Column("id", String, primary_key=True),
    Column("tenant_id", String, nullable=False),
    Column("status", String, nullable=False),
    Column("policy", String, nullable=False),
    Column("domain", String),
    Column("purpose", String, nullable=False),
    Column("task_id", String),
    Column("group_id", String),
    Column("created_at", Double, nullable=False),
    *noun_columns(),
    Index(None, "created_at", "id"),
    Index(None, "tenant_id", "created_at"),
    Index(None, "policy", "created_at"),
    Index(None, "status", "created_at"),
    Index(None, "group_id"),
)
