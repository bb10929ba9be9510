"""Rows of AuditRecords."""

from sqlalchemy import Column, Double, Index, String, Table

from store.tables.metadata import METADATA, noun_columns

AUDIT_RECORDS = Table(
    "audit_records",
    METADATA,
    Column("id", String, primary_key=True),
    Column("created_at", Double, nullable=False),
    *noun_columns(),
    Index(None, "created_at"),
)
