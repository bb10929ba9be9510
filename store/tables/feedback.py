"""Rows of Feedback."""

from sqlalchemy import Column, Double, Index, String, Table, UniqueConstraint

from store.tables.metadata import METADATA, noun_columns

FEEDBACK = Table(
    "feedback",
    METADATA,
    Column("id", String, primary_key=True),
    Column("tenant_id", String, nullable=False),
    Column("episode_id", String, nullable=False),
    Column("turn_id", String),
    Column("name", String, nullable=False),
    Column("idempotency_key", String),
    Column("created_at", Double, nullable=False),
    *noun_columns(),
    # A repeated request adds nothing; rows without a key never clash.
    UniqueConstraint("tenant_id", "idempotency_key"),
    Index(None, "episode_id", "created_at", "id"),
    Index(None, "tenant_id", "created_at", "id"),
    Index(None, "created_at"),
)
