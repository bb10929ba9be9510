"""Rows of Verdicts."""

from sqlalchemy import Column, Double, Index, String, Table

from store.tables.metadata import METADATA, noun_columns

VERDICTS = Table(
    "verdicts",
    METADATA,
    Column("id", String, primary_key=True),
    Column("episode_id", String, nullable=False),
    Column("created_at", Double, nullable=False),
    *noun_columns(),
    Index(None, "episode_id"),
)
