"""Rows of Experiments."""

from sqlalchemy import Column, Double, Index, String, Table

from store.tables.metadata import METADATA, noun_columns

EXPERIMENTS = Table(
    "experiments",
    METADATA,
    Column("id", String, primary_key=True),
    Column("policy", String, nullable=False),
    Column("status", String, nullable=False),
    Column("created_at", Double, nullable=False),
    *noun_columns(),
    Index(None, "policy", "status"),
)
