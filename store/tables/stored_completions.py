"""Rows of StoredCompletions: what was asked apart from the payload, and one row for each pair of metadata."""

from sqlalchemy import Column, Double, Index, String, Table, Text

from store.tables.metadata import METADATA, noun_columns

STORED_COMPLETIONS = Table(
    "stored_completions",
    METADATA,
    # Clients may choose an engine's request id: another Tenant's must not be in the way.
    Column("tenant_id", String, primary_key=True),
    Column("id", String, primary_key=True),
    Column("model", String, nullable=False),
    Column("asked_model", String, nullable=False),
    Column("created_at", Double, nullable=False),
    # Apart, because lists do not show it and images make it large.
    Column("messages", Text, nullable=False),
    *noun_columns(),
    Index(None, "tenant_id", "created_at", "id"),
)

STORED_COMPLETION_METADATA = Table(
    "stored_completion_metadata",
    METADATA,
    Column("tenant_id", String, primary_key=True),
    Column("completion_id", String, primary_key=True),
    Column("key", String, primary_key=True),
    Column("value", String, nullable=False),
    Index(None, "tenant_id", "key", "value"),
)
