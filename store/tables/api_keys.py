"""Rows of ApiKeys."""

from sqlalchemy import Column, Double, ForeignKey, Index, String, Table, UniqueConstraint

from store.tables.metadata import METADATA, noun_columns

API_KEYS = Table(
    "api_keys",
    METADATA,
    Column("id", String, primary_key=True),
    Column("tenant_id", String, ForeignKey("tenants.id"), nullable=False),
    Column("key_hash", String, nullable=False),
    Column("created_at", Double, nullable=False),
    Column("previous_hash", String),
    *noun_columns(),
    UniqueConstraint("key_hash"),
    Index(None, "tenant_id"),
    Index(None, "previous_hash", unique=True),
)
