"""Rows of SuiteResults."""

from sqlalchemy import Column, Double, Index, Integer, String, Table

from store.tables.metadata import METADATA, noun_columns

SUITE_RESULTS = Table(
    "suite_results",
    METADATA,
    Column("id", String, primary_key=True),
    Column("suite", String, nullable=False),
    Column("suite_version", Integer, nullable=False),
    Column("policy", String, nullable=False),
    Column("version", Integer, nullable=False),
    Column("variant", String, nullable=False),
    Column("status", String, nullable=False),
    Column("tenant_id", String, nullable=True, index=True),
    Column("created_at", Double, nullable=False),
    *noun_columns(),
    Index(None, "policy", "version", "suite"),
)
