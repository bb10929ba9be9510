"""Rows of Checkpoints."""

from sqlalchemy import Column, Integer, String, Table, UniqueConstraint

from store.tables.metadata import METADATA, noun_columns

CHECKPOINTS = Table(
    "checkpoints",
    METADATA,
    Column("id", String, primary_key=True),
    Column("policy", String, nullable=False),
    Column("version", Integer, nullable=False),
    *noun_columns(),
    UniqueConstraint("policy", "version"),
)
