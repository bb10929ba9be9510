"""Rows of Policies, each with the counter of its PolicyVersions."""

from sqlalchemy import Column, Integer, String, Table

from store.tables.metadata import METADATA, noun_columns

POLICIES = Table(
    "policies",
    METADATA,
    Column("name", String, primary_key=True),
    Column("base", String, nullable=False),
    # The last number given out: it only grows, so that no number is used twice.
    Column("last_version", Integer, nullable=False, server_default="0"),
    *noun_columns(),
)
