"""Rows of ShadowPairs: one for each request that a shadow mirrored, in the order in which they were committed."""

from sqlalchemy import BigInteger, Column, ForeignKey, Index, Integer, String, Table

from store.tables.metadata import METADATA, noun_columns

SHADOW_PAIRS = Table(
    "shadow_pairs",
    METADATA,
    Column("id", String, primary_key=True),
    Column("experiment_id", String, ForeignKey("experiments.id"), nullable=False),
    Column("episode_id", String, nullable=False),
    Column("status", String, nullable=False),
    Column("skipped_because", String, nullable=True),
    # Microseconds, given under a lock and never twice: who reads in this order misses nothing.
    Column("sequence", BigInteger, nullable=False),
    Column("candidate_tokens", Integer, nullable=False),
    *noun_columns(),
    Index(None, "experiment_id", "sequence", unique=True),
    Index(None, "episode_id"),
)
