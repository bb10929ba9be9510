"""Which Checkpoint saw which Episode."""

from sqlalchemy import Column, Index, String, Table

from store.tables.metadata import METADATA

LINEAGE = Table(
    "lineage",
    METADATA,
    Column("checkpoint_id", String, primary_key=True),
    Column("episode_id", String, primary_key=True),
    Index(None, "episode_id"),
)
