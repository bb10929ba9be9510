"""Rows of MinedTasks."""

from sqlalchemy import Column, Double, Index, String, Table, UniqueConstraint

from store.tables.metadata import METADATA, noun_columns

MINED_TASKS = Table(
    "mined_tasks",
    METADATA,
    Column("id", String, primary_key=True),
    Column("tenant_id", String, nullable=False),
    Column("episode_id", String, nullable=False),
    Column("digest", String, nullable=False),
    Column("status", String, nullable=False),
    Column("created_at", Double, nullable=False),
    *noun_columns(),
    # Two tenants may have asked the same: neither learns of the other.
    UniqueConstraint("tenant_id", "digest"),
    Index(None, "episode_id"),
    Index(None, "status", "created_at"),
)
