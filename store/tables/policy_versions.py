"""Rows of PolicyVersions."""

from sqlalchemy import Column, ForeignKey, Index, Integer, String, Table

from store.tables.metadata import METADATA, noun_columns

POLICY_VERSIONS = Table(
    "policy_versions",
    METADATA,
    Column("policy", String, ForeignKey("policies.name"), primary_key=True),
    Column("version", Integer, primary_key=True, autoincrement=False),
    Column("serving", String, nullable=False),
    *noun_columns(),
    Index(None, "serving"),
)
