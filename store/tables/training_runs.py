"""Rows of TrainingRuns."""

from sqlalchemy import Column, Double, Index, String, Table

from store.tables.metadata import METADATA, noun_columns

TRAINING_RUNS = Table(
    "training_runs",
    METADATA,
    Column("id", String, primary_key=True),
    Column("policy", String, nullable=False),
    Column("created_at", Double, nullable=False),
    *noun_columns(),
    Index(None, "policy", "created_at"),
)
