"""Rows of ShadowPairs: one for each request that a shadow mirrored or left out."""

from sqlalchemy import Column, Double, ForeignKey, Index, String, Table

from store.tables.metadata import METADATA, noun_columns

SHADOW_PAIRS = Table(
    "shadow_pairs",
    METADATA,
    Column("id", String, primary_key=True),
    Column("experiment_id", String, ForeignKey("experiments.id"), nullable=False),
    Column("episode_id", String, nullable=False),
    Column("status", String, nullable=False),
    Column("skipped_because", String, nullable=True),
    Column("created_at", Double, nullable=False),
    *noun_columns(),
    Index(None, "experiment_id", "created_at", "id"),
    Index(None, "episode_id"),
)
