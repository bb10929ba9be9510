"""Rows of Aliases."""

from sqlalchemy import Column, ForeignKey, Integer, String, Table

from store.tables.metadata import METADATA, noun_columns

ALIASES = Table(
    "aliases",
    METADATA,
    Column("policy", String, ForeignKey("policies.name"), primary_key=True),
    Column("name", String, primary_key=True),
    Column("version", Integer, nullable=False),
    *noun_columns(),
)
