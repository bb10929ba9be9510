"""Rows of Releases."""

from sqlalchemy import Column, Integer, String, Table, UniqueConstraint

from store.tables.metadata import METADATA, noun_columns

RELEASES = Table(
    "releases",
    METADATA,
    Column("id", String, primary_key=True),
    Column("policy", String, nullable=False),
    Column("version", Integer, nullable=False),
    Column("status", String, nullable=False),
    Column("revision", Integer, nullable=False),
    *noun_columns(),
    UniqueConstraint("policy", "version"),
)
