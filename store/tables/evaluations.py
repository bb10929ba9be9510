"""Rows of Evaluations."""

from sqlalchemy import Column, Double, Index, Integer, String, Table

from store.tables.metadata import METADATA, noun_columns

EVALUATIONS = Table(
    "evaluations",
    METADATA,
    Column("id", String, primary_key=True),
    Column("policy", String, nullable=False),
    Column("version", Integer, nullable=False),
    Column("created_at", Double, nullable=False),
    *noun_columns(),
    Index(None, "policy", "version"),
)
