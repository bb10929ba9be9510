"""Rows of ReleaseRuns."""

from sqlalchemy import Column, Double, Index, Integer, String, Table, UniqueConstraint

from store.tables.metadata import METADATA, noun_columns

RELEASE_RUNS = Table(
    "release_runs",
    METADATA,
    Column("id", String, primary_key=True),
    Column("policy", String, nullable=False),
    Column("version", Integer, nullable=False),
    Column("status", String, nullable=False),
    # NULL is equal to no other NULL: a Policy has one open run, and as many closed ones as it likes.
    Column("open_policy", String, nullable=True),
    Column("started_at", Double, nullable=False),
    Column("revision", Integer, nullable=False),
    *noun_columns(),
    UniqueConstraint("open_policy"),
    Index(None, "policy", "started_at"),
)
